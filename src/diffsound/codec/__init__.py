"""The VQ-VAE (section III-B): mel-spectrogram to tokens and back."""
