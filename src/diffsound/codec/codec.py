"""The codec (VQ-VAE, section III-B): mel to tokens and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn

from diffsound.codec.config import CodecConfig, Conv2dConfig, LinearConfig
from diffsound.codec.quantizer import Quantized, build_quantizer
from diffsound.errors import InputError

if TYPE_CHECKING:
    from diffsound.codec.conv2d import Conv2dDecoder
    from diffsound.codec.frame_texture import FrameTexture


@dataclass(frozen=True)
class CodecOutput:
    """What a training pass gives.

    mel: [B, n_mels, L] the reconstruction, of the input's length.
    tokens: int64 [B, F', L'].
    codebook_loss, commitment_loss: the second and third term of eq. 2–3, unweighted scalars.
    quantizer_loss: the two with the config's weights.
    latent: [B, C, F'', L'] what the encoder gave, before quantizing.
    log_prob: [B, L] log density of each frame of the input given its tokens, in nats per cell; None
        for a codec without texture.
    """

    mel: Tensor
    tokens: Tensor
    codebook_loss: Tensor
    commitment_loss: Tensor
    quantizer_loss: Tensor
    latent: Tensor
    log_prob: Tensor | None = None


class PatchEncoder(nn.Module):
    """mel [B, n_mels, L] in [-1, 1] → latent [B, C, 1, L / stride], one linear map per column."""

    def __init__(self, config: LinearConfig, n_mels: int) -> None:
        super().__init__()
        stride = config.time_stride
        self.patches = nn.Conv1d(n_mels, config.latent, stride, stride=stride)

    def forward(self, mel: Tensor) -> Tensor:
        return self.patches(mel)[:, :, None]


class PatchDecoder(nn.Module):
    """latent [B, C, 1, L'] → mel [B, n_mels, L' · stride], one linear map per column."""

    def __init__(self, config: LinearConfig, n_mels: int) -> None:
        super().__init__()
        stride = config.time_stride
        self.patches = nn.ConvTranspose1d(config.latent, n_mels, stride, stride=stride)

    @property
    def last_layer(self) -> Tensor:
        """The weight at which VQGAN balances the adversarial gradient."""
        return self.patches.weight

    def forward(self, latent: Tensor) -> Tensor:
        return self.patches(latent[:, :, 0])


class Codec(nn.Module):
    """Mels [B, n_mels, L] in [0, 1] to token grids [B, F', L'] and back.

    L' is L / time_stride rounded up; the last frame is repeated to fill the last column.
    """

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.config = config
        self.n_mels = config.n_mels
        self.rows = config.rows
        self.codebook_size = config.codebook_size
        self.time_stride = config.time_stride
        backbone = config.backbone
        if isinstance(backbone, Conv2dConfig):
            from diffsound.codec.conv2d import Conv2dDecoder, Conv2dEncoder

            self.encoder: nn.Module = Conv2dEncoder(backbone)
            self.decoder: Conv2dDecoder | PatchDecoder = Conv2dDecoder(backbone)
        else:
            self.encoder = PatchEncoder(backbone, config.n_mels)
            self.decoder = PatchDecoder(backbone, config.n_mels)
        quantizer = config.quantizer
        # The projections to and from the codes see one cell, or a whole column as one long cell.
        self.by_column = quantizer.layout in ("product", "residual")
        inner, parts = backbone.latent, 1
        if self.by_column:
            inner *= config.latent_rows
            parts = self.rows if quantizer.layout == "product" else 1
        self.quant_conv = nn.Conv2d(inner, parts * quantizer.code_dim, 1)
        self.post_quant_conv = nn.Conv2d(parts * quantizer.code_dim, inner, 1)
        self.quantizer = build_quantizer(quantizer, self.rows)
        self.texture: FrameTexture | None = None
        if config.texture is not None:
            from diffsound.codec.frame_texture import FrameTexture

            self.texture = FrameTexture(config.texture, config.n_mels, self.rows)
        self._tokens_frozen = False

    def freeze_tokens(self) -> None:
        """From now on train the decoder's half only: every mel keeps the tokens it has."""
        self._tokens_frozen = True
        for part in (self.encoder, self.quant_conv, self.quantizer):
            part.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self._tokens_frozen:
            for part in (self.encoder, self.quant_conv, self.quantizer):
                part.eval()
        return self

    def token_state(self) -> dict[str, Tensor]:
        """The weights that decide which tokens a mel gets."""
        idle = ("decoder.", "post_quant_conv.", "texture."), (".count", ".total", ".restarts")
        return {
            name: tensor
            for name, tensor in self.state_dict().items()
            if not (name.startswith(idle[0]) or name.endswith(idle[1]))
        }

    @property
    def last_layer(self) -> Tensor:
        """The decoder's last weight, where VQGAN balances the adversarial gradient."""
        return self.decoder.last_layer

    def encode(self, mel: Tensor) -> Tensor:
        """mel [B, n_mels, L] → tokens int64 [B, F', ceil(L / time_stride)] (eq. 1)."""
        return self._quantize(self._encode(mel)).tokens

    def decode(
        self,
        tokens: Tensor,
        generator: torch.Generator | None = None,
        text: Tensor | None = None,
    ) -> Tensor:
        """tokens [B, F', L'] → mel [B, n_mels, L' · time_stride], not clipped.

        generator: on the CPU, for a codec that draws textures; others ignore it. text: pooled,
        [B, text_dim], for a texture that listens to it.
        """
        mel = self.mean(tokens)
        if self.texture is None:
            return mel
        return self.texture.draw(mel.clamp(0, 1), self.rows, generator, text)

    def mean(self, tokens: Tensor) -> Tensor:
        """As `decode`, before any texture is drawn."""
        if tokens.ndim != 3 or tokens.shape[1] != self.rows or tokens.shape[2] == 0:
            raise InputError(
                f"tokens must be [batch, {self.rows}, columns ≥ 1], not {list(tokens.shape)}"
            )
        return self._decode(self.quantizer.lookup(self._checked(tokens)))

    def sketch(self, tokens: Tensor) -> Tensor:
        """The first rows of tokens, [B, k, L'] → a rough mel [B, n_mels, L' · time_stride].

        For a judge who is to compare what is not finished: the sum of the codes that are there,
        without texture. A small part of what `decode` costs.
        """
        if not 1 <= tokens.shape[1] <= self.rows or not self.sketches:
            raise InputError(
                f"a sketch needs the first 1 to {self.rows} rows of residual tokens, "
                f"not {list(tokens.shape)} of a '{self.config.quantizer.layout}' codec"
            )
        return self._decode(self.quantizer.lookup(self._checked(tokens)))

    @property
    def sketches(self) -> bool:
        """Whether the first rows of tokens mean something without the others."""
        return self.config.quantizer.layout == "residual"

    def _checked(self, tokens: Tensor) -> Tensor:
        tokens = tokens.long()
        # A graph that is being exported cannot look at values.
        if not torch.compiler.is_compiling() and tokens.numel():
            low, high = int(tokens.min()), int(tokens.max())
            if low < 0 or high >= self.codebook_size:
                raise InputError(
                    f"tokens must lie in 0..{self.codebook_size - 1}, not {low}..{high}"
                )
        return tokens

    def forward(
        self,
        mel: Tensor,
        generator: torch.Generator | None = None,
        text: Tensor | None = None,
    ) -> CodecOutput:
        """Reconstruct mel [B, n_mels, L] through its tokens, with the terms of the loss (eq. 2–3).

        generator: for the restart of unused codes (default: torch's own).
        text: pooled, [B, text_dim], for the texture; zeros for none.
        """
        latent = self._encode(mel)
        quantized = self._quantize(latent, generator)
        weights = self.config.quantizer
        return CodecOutput(
            mel=self._decode(quantized.codes)[..., : mel.shape[-1]],
            tokens=quantized.tokens,
            codebook_loss=quantized.codebook_loss,
            commitment_loss=quantized.commitment_loss,
            quantizer_loss=weights.codebook_weight * quantized.codebook_loss
            + weights.commitment_weight * quantized.commitment_loss,
            latent=latent,
            log_prob=self._log_prob(mel, quantized.tokens, generator, text),
        )

    def _log_prob(
        self,
        mel: Tensor,
        tokens: Tensor,
        generator: torch.Generator | None,
        text: Tensor | None,
    ) -> Tensor | None:
        """Log density [B, L] of mels given their tokens; half of those in training, given the first
        rows only."""
        if self.texture is None:
            return None
        fewest = min(self.config.texture.fewest_rows, self.rows) if self.config.texture else 0
        rows = torch.full((len(tokens),), self.rows)
        if self.training and self.sketches:
            fewer = torch.randint(fewest, self.rows + 1, (len(tokens),), generator=generator)
            rows = torch.where(torch.rand(len(tokens), generator=generator) < 0.5, rows, fewer)
        with torch.no_grad():
            means = [
                self._decode(self.quantizer.lookup(item[None, :count]))
                for item, count in zip(tokens, rows.tolist(), strict=True)
            ]
        mean = torch.cat(means)[..., : mel.shape[-1]].clamp(0, 1)
        forget = 0.3 if self.training else 0.0
        return self.texture.log_prob(mel, mean, rows.to(mel.device), generator, forget, text)

    def _encode(self, mel: Tensor) -> Tensor:
        """mel [B, n_mels, L] → latent [B, C, F'', L']."""
        if mel.ndim != 3 or mel.shape[1] != self.n_mels or mel.shape[2] == 0:
            raise InputError(
                f"a mel must be [batch, {self.n_mels}, frames ≥ 1], not {list(mel.shape)}"
            )
        missing = -mel.shape[2] % self.time_stride
        if missing:
            mel = torch.cat([mel, mel[..., -1:].expand(-1, -1, missing)], dim=2)
        return self.encoder(2 * mel - 1)

    def _quantize(self, latent: Tensor, generator: torch.Generator | None = None) -> Quantized:
        if self.by_column:
            latent = latent.transpose(1, 2).flatten(1, 2)[:, :, None]
        # Distances need full precision: in half precision near codes are told apart wrongly.
        with torch.autocast(latent.device.type, enabled=False):
            projected = self.quant_conv(latent.float())  # [B, parts · d, rows or 1, L']
            if self.by_column:
                parts = projected[:, :, 0].unflatten(1, (-1, self.config.quantizer.code_dim))
            else:
                parts = projected.transpose(1, 2)
            return self.quantizer(parts, generator)

    def _decode(self, codes: Tensor) -> Tensor:
        """codes [B, P, d, L'] → mel [B, n_mels, L' · time_stride]."""
        codes = codes.flatten(1, 2)[:, :, None] if self.by_column else codes.transpose(1, 2)
        latent: Tensor = self.post_quant_conv(codes)
        if self.by_column:
            latent = latent[:, :, 0].unflatten(1, (self.config.latent_rows, -1)).transpose(1, 2)
        return (self.decoder(latent) + 1) / 2
