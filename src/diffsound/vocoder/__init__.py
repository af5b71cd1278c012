"""Mel-spectrogram to wave: MelGAN, the iSTFT vocoder, Griffin-Lim."""
