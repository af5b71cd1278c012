"""The VQ-VAE (section III-B): mel-spectrogram to tokens and back."""

from diffsound.codec.codec import Codec, CodecOutput
from diffsound.codec.config import CodecConfig, Conv2dConfig, LinearConfig, QuantizerConfig
from diffsound.codec.quantizer import CodebookHealth, codebook_health

__all__ = [
    "CodebookHealth",
    "Codec",
    "CodecConfig",
    "CodecOutput",
    "Conv2dConfig",
    "LinearConfig",
    "QuantizerConfig",
    "codebook_health",
]
