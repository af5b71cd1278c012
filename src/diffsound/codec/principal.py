"""A linear codec's first weights, computed from mels instead of learned from noise.

The best linear map of a column's frames to a shorter latent is their principal components, and the
best codes for what is left at each stage are k-means'. Both take minutes, and code tones and
harmonics that gradient descent needs hours to find.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from diffsound.codec.codec import Codec, PatchDecoder, PatchEncoder
from diffsound.codec.quantizer import ResidualQuantizer
from diffsound.errors import ConfigError, DataError

ROUNDS = 15  # of k-means; the error falls by less than a thousandth afterwards


@torch.no_grad()
def principal_start(codec: Codec, mels: Tensor, generator: torch.Generator) -> None:
    """Set a codec's linear maps and codebooks from mels [N, n_mels, L] in [0, 1].

    The codec needs a linear backbone, a residual quantizer, and codes of the latent's length.
    generator: for the first codes of k-means.
    """
    encoder, decoder, quantizer = codec.encoder, codec.decoder, codec.quantizer
    backbone = codec.config.backbone
    if not (
        isinstance(encoder, PatchEncoder)
        and isinstance(decoder, PatchDecoder)
        and isinstance(quantizer, ResidualQuantizer)
        and codec.config.quantizer.code_dim == backbone.latent
    ):
        raise ConfigError(
            "a principal start needs a linear codec.backbone, the quantizer layout 'residual', "
            "and quantizer.code_dim equal to backbone.latent"
        )
    stride, latent = codec.time_stride, backbone.latent
    whole = mels.shape[2] // stride * stride
    # [N, n_mels, L] → [N · L', n_mels, stride]
    patches = (2 * mels[..., :whole] - 1).unflatten(2, (-1, stride)).transpose(1, 2).flatten(0, 1)
    if len(patches) < codec.codebook_size:
        raise DataError(
            f"{len(patches)} columns are too few for codebooks of {codec.codebook_size}"
        )
    mean = patches.mean((0, 2))  # [n_mels]
    components = _components((patches - mean[:, None]).flatten(1), latent)
    kernel = components.view(latent, codec.n_mels, stride)
    _set(encoder.patches, kernel, -(kernel * mean[:, None]).sum((1, 2)))
    _set(decoder.patches, kernel, mean)
    identity = torch.eye(latent)[:, :, None, None]
    for layer in (codec.quant_conv, codec.post_quant_conv):
        _set(layer, identity, torch.zeros(latent))
    rest = encoder(patches)[:, :, 0, 0]  # [N · L', C], what the codes so far leave
    for book in quantizer.books():
        book.fit(rest[None], ROUNDS, generator)
        rest = rest - book.lookup(book.nearest(rest[None]))[0]


def _set(layer: nn.Conv1d | nn.Conv2d | nn.ConvTranspose1d, weight: Tensor, bias: Tensor) -> None:
    assert layer.bias is not None
    layer.weight.copy_(weight)
    layer.bias.copy_(bias)


def _components(patches: Tensor, count: int) -> Tensor:
    """The directions in which patches [N, D] vary most, of length one, [count, D]."""
    covariance = (patches.T @ patches).double() / len(patches)
    return torch.linalg.eigh(covariance).eigenvectors.flip(1)[:, :count].T.float()
