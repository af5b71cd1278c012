"""Seamless loops: the end of a sound joins its beginning.

The columns around the seam are drawn again with both sides given, codec and vocoder treat the grid
as a ring, and the surplus of whole columns over the requested length is cut out in phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from diffsound.decoder import SamplingSettings
from diffsound.decoder.sampling import Known
from diffsound.generation.jobs import Progress, decoder_threads, generators, noise_seed, seam_seed
from diffsound.text.features import TextFeatures

if TYPE_CHECKING:
    from diffsound.generation.pipeline import TextToSound

NOT_FOR_EDITS = "an edit keeps the ends of its clip and cannot be a loop; leave out 'loop'"
SEAM_COLUMNS = 2  # drawn again on either side of the seam
CONTEXT_COLUMNS = 8  # of the other end, given to codec and vocoder beyond either end
FADE_SECONDS = 0.03
_SEARCH_SECONDS = 0.002  # between the places where a cut is tried


def make_loops(
    pipeline: TextToSound,
    text: TextFeatures,
    negative: TextFeatures | None,
    tokens: Tensor,
    seeds: Sequence[int],
    settings: SamplingSettings,
    progress: Progress,
    samples: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """tokens [B, F', L'] as a ring: tokens redrawn at the seam, mel [B, n_mels, L] and loops
    [B, samples].

    seeds: of the tokens. negative: at least B times the same text.
    """
    known, roll = seam_known(tokens)
    with decoder_threads(tokens.shape[2]):
        drawn = pipeline.decoder.generate(
            text,
            (tokens.shape[1], tokens.shape[2]),
            generators(map(seam_seed, seeds)),
            settings,
            negative=None if negative is None else negative[: len(tokens)],
            known=known,
            callback=lambda done, total, now: progress.second_half(done, total, now.roll(-roll, 2)),
        )
    tokens = drawn.roll(-roll, dims=2)
    noise = generators(map(noise_seed, seeds))
    frames = CONTEXT_COLUMNS * pipeline.bundle.codec.time_stride
    hop = pipeline.bundle.config.codec.mel.hop_length
    mels = pipeline.decode(wrapped(tokens, CONTEXT_COLUMNS), noise, text.pooled)
    mels = mels[:, :, frames:-frames]
    waves = pipeline.vocode(wrapped(mels, frames), noise)[:, frames * hop :].cpu().numpy()
    period = mels.shape[2] * hop
    closed = [close(wave, period, samples, pipeline.sample_rate) for wave in waves]
    return tokens, mels, torch.from_numpy(np.stack(closed))


def seam_known(tokens: Tensor) -> tuple[Known, int]:
    """The known cells when the seam of tokens [B, F', L'] is drawn again, and the roll.

    The grid is rolled by half its width, so that the seam lies in the middle.
    """
    width = tokens.shape[2]
    roll = width // 2
    side = max(1, min(SEAM_COLUMNS, width // 4))
    keep = torch.ones_like(tokens, dtype=torch.bool)
    keep[:, :, max(0, roll - side) : roll + side] = False
    return Known(tokens.roll(roll, dims=2), keep), roll


def wrapped(ring: Tensor, extra: int) -> Tensor:
    """[…, L] -> […, extra + L + extra], with the other end beyond either end."""
    length = ring.shape[-1]
    return ring[..., torch.arange(-extra, length + extra, device=ring.device) % length]


def close(wave: np.ndarray, period: int, samples: int, rate: int) -> np.ndarray:
    """A wave [at least period + fade] that repeats after `period`, as a loop of `samples`.

    The surplus is cut out where the wave before and the wave after it agree best.
    """
    fade = min(round(FADE_SECONDS * rate), len(wave) - period, samples // 4)
    ring = wave[:period].copy()
    ring[:fade] = cross_fade(wave[period : period + fade], wave[:fade])
    surplus = period - samples
    if surplus == 0:
        return ring
    # ring[at : at + fade] turns into ring[at + surplus : at + surplus + fade].
    step = max(1, round(_SEARCH_SECONDS * rate))
    places = np.arange(0, samples - fade, step)
    agreement = [
        _correlation(ring[at : at + fade], ring[at + surplus :][:fade]) for at in places.tolist()
    ]
    at = int(places[int(np.argmax(agreement))])
    joined = cross_fade(ring[at : at + fade], ring[at + surplus :][:fade])
    return np.concatenate([ring[:at], joined, ring[at + surplus + fade :]])


def cross_fade(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """From one wave [samples] to another, at constant power whatever their correlation."""
    share = (np.arange(len(before)) + 0.5) / max(1, len(before))
    rise = 0.5 - 0.5 * np.cos(np.pi * share)
    # Gains that add up to 1 suit waves that agree; others would lose power in the middle.
    together = max(0.0, _correlation(before, after))
    power = np.sqrt(np.square(1 - rise) + np.square(rise) + 2 * together * rise * (1 - rise))
    return np.asarray(((1 - rise) * before + rise * after) / power, dtype=before.dtype)


def _correlation(one: np.ndarray, other: np.ndarray) -> float:
    energy = float(np.sqrt(np.dot(one, one) * np.dot(other, other)))
    return float(np.dot(one, other)) / energy if energy > 1e-12 else 0.0
