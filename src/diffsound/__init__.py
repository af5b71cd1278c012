"""Text to sound by discrete diffusion over VQ-VAE tokens."""

__version__ = "0.1.0"
