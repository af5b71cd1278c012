"""The three networks of a generation as graphs of tensors: no Python values, any batch and length.

Each takes and gives plain tensors, so that the exported files can be used without this package.
"""

from __future__ import annotations

import copy
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan  # the exporter knows it; torch has no public name yet

from diffsound.audio.mel import MelConfig
from diffsound.codec.codec import Codec
from diffsound.codec.frame_texture import UNIT, TextureNoise
from diffsound.decoder.diffsound import Diffsound
from diffsound.decoder.transformer import Block, DenoisingTransformer, TextContext
from diffsound.vocoder.istft import QUIETEST, ISTFTVocoder
from diffsound.vocoder.melgan import MelGAN


class DecoderStep(nn.Module):
    """One evaluation of the denoiser: noisy tokens, time and text to logits of x0.

    The text's keys and values are computed again at every step; for a sentence that is a few
    percent of a step, and the graph stays one that anybody can call.
    """

    def __init__(self, decoder: Diffsound) -> None:
        super().__init__()
        transformer = copy.deepcopy(decoder.transformer)
        transformer.positions = AnyLength(transformer)
        self.transformer = transformer

    def forward(
        self, tokens: Tensor, t: Tensor, text: Tensor, mask: Tensor, pooled: Tensor
    ) -> Tensor:
        """tokens [B, F', L'], t [B] in 1..T, text [B, S, D], mask [B, S], pooled [B, D] ->
        logits [B, F', L', K]."""
        network = self.transformer
        features = F.normalize(text, dim=-1) if network.config.normalise_text else text
        pairs = [cast(Block, b).cross_attention.project_text(features) for b in network.blocks]
        context = TextContext(
            keys=tuple(keys for keys, _ in pairs),
            values=tuple(values for _, values in pairs),
            mask=None if network.config.attend_padding else mask[:, None, None, :],
            pooled=None if network.pooled is None else network.pooled(pooled),
        )
        return network(tokens, network.modulations(t, context.pooled), context)


class AnyLength(nn.Module):
    """The decoder's positions without a branch on the length, as a graph must have them.

    The first places up to the learned length, all of them interpolated beyond (`layers.stretch`).
    """

    table: Tensor

    def __init__(self, transformer: DenoisingTransformer) -> None:
        super().__init__()
        columns = transformer.config.columns
        table = transformer.positions(columns).detach()
        self.register_buffer("table", table.unflatten(0, (columns, -1)))

    def forward(self, columns: int) -> Tensor:
        """Positions of `columns` columns in sequence order."""
        last = self.table.shape[0] - 1
        index = torch.arange(columns, dtype=torch.float64)
        place = index * torch.clamp(last / index[-1].clamp_min(1), max=1.0)
        below = place.long().clamp(max=max(last - 1, 0))
        above = (below + 1).clamp(max=last)
        share = (place - below).to(self.table.dtype)[:, None, None]
        low, high = self.table[below], self.table[above]
        return (low + share * (high - low)).flatten(0, 1)


class CodecDecoder(nn.Module):
    """Tokens [B, F', L'] to mel [B, n_mels, L' * time_stride].

    A codec that draws textures takes their noise as inputs (`codec.frame_texture.TextureNoise`);
    its loop over the frames becomes one Scan.
    """

    def __init__(self, codec: Codec) -> None:
        super().__init__()
        self.codec = codec

    def forward(
        self,
        tokens: Tensor,
        own: Tensor | None = None,
        shared: Tensor | None = None,
        gumbel: Tensor | None = None,
    ) -> Tensor:
        texture = self.codec.texture
        mean = self.codec.mean(tokens)
        if texture is None:
            return mean
        assert own is not None
        assert shared is not None
        assert gumbel is not None
        rows = torch.full((tokens.shape[0],), self.codec.rows)
        each = (texture.context(mean, rows), own, shared, gumbel)  # [B, L, …]

        def step(before: Tensor, now: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
            frame = texture.next_frame(now[0], before, TextureNoise(*now[1:]))
            return torch.cat((before[:, texture.n_mels :], frame), dim=1), frame

        nothing = mean.new_zeros(mean.shape[0], texture.config.past * texture.n_mels)
        _, frames = scan(step, nothing, tuple(part.transpose(0, 1) for part in each), dim=0)
        return mean + UNIT * frames.permute(1, 2, 0)


class ISTFTNetwork(nn.Module):
    """The iSTFT vocoder with its inverse transform as one transposed convolution.

    Exchange formats have no complex numbers; an inverse real DFT, the window and overlap-add are a
    transposed convolution with windowed cosines and sines, and the DFT of its rounds a convolution.
    """

    kernel: Tensor
    square: Tensor
    analysis: Tensor

    def __init__(self, vocoder: ISTFTVocoder) -> None:
        super().__init__()
        self.vocoder = vocoder
        mel: MelConfig = vocoder.mel_config
        self.n_fft, self.hop = mel.n_fft, mel.hop_length
        window = torch.hann_window(mel.n_fft, dtype=torch.float64)
        angle = torch.outer(torch.arange(mel.bins), torch.arange(mel.n_fft)).double()
        angle *= 2 * torch.pi / mel.n_fft
        # Every bin but the first and the last stands for two of the full transform.
        weight = torch.full((mel.bins, 1), 2.0, dtype=torch.float64)
        weight[0] = weight[-1] = 1.0
        kernel = torch.cat((weight * angle.cos(), -weight * angle.sin())) / mel.n_fft * window
        self.register_buffer("kernel", kernel[:, None].float())
        self.register_buffer("square", window.square()[None, None].float())
        analysis = torch.cat((angle.cos(), -angle.sin())) * window
        self.register_buffer("analysis", analysis[:, None].float())

    def forward(self, mel: Tensor) -> Tensor:
        """Mel [B, n_mels, L] to wave [B, L * hop_length]."""
        magnitude, phase = self.vocoder.spectrum(mel)
        parts = torch.cat((magnitude * phase.cos(), magnitude * phase.sin()), dim=1)
        for _ in range(self.vocoder.config.rounds):
            real, imaginary = self._forward_transform(self._inverse(parts)).chunk(2, dim=1)
            size = (real.square() + imaginary.square()).sqrt().clamp_min(QUIETEST)
            parts = torch.cat((real * (magnitude / size), imaginary * (magnitude / size)), dim=1)
        return self._inverse(parts)

    def _inverse(self, parts: Tensor) -> Tensor:
        """Real and imaginary parts [B, 2 · bins, L] to wave [B, L * hop_length]."""
        summed = F.conv_transpose1d(parts, self.kernel, stride=self.hop)
        weight = F.conv_transpose1d(torch.ones_like(parts[:1, :1]), self.square, stride=self.hop)
        start, length = self.n_fft // 2, parts.shape[2] * self.hop
        wave, weight = (x[:, 0, start : start + length] for x in (summed, weight))
        return wave / weight

    def _forward_transform(self, wave: Tensor) -> Tensor:
        """Wave [B, L * hop_length] to the parts of its first L frames."""
        half = self.n_fft // 2
        mode = self.vocoder.mel_config.padding
        padded = F.pad(wave[:, None], (half, half), mode=mode)
        return F.conv1d(padded, self.analysis, stride=self.hop)[..., :-1]


class MelGANNetwork(nn.Module):
    """MelGAN with its weight normalisation folded away."""

    def __init__(self, vocoder: MelGAN) -> None:
        super().__init__()
        self.vocoder = copy.deepcopy(vocoder).fuse()

    def forward(self, mel: Tensor) -> Tensor:
        """Mel [B, n_mels, L] to wave [B, L * hop_length]."""
        return self.vocoder(mel)
