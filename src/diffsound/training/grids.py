"""Token grids in batches of equal width: fitted to a ladder of widths, mixed from several folders.

A clip's grid is as wide as the clip is long, but a batch needs one width. So grids are fitted to
the rungs of a ladder: cut to the widest rung they fill or, if the codec's tokens of silence are
known, padded with silence to the next rung, which also teaches how sounds end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import PositiveInt, model_validator

from diffsound.config import Config
from diffsound.data.datasets import TokenDataset
from diffsound.data.loaders import BalancedSampler, ItemSampler, epoch_rng
from diffsound.errors import DataError
from diffsound.training.config import Share


class GridConfig(Config):
    """How grids are fitted to batches.

    widths: the ladder, in columns; None leaves every grid as it is, one bucket per width.
    fill: "silence" pads a grid to the next rung (needs the run's codec); "crop" cuts it to the
        widest rung it fills and leaves out clips that fill none.
    narrower: share of draws in which a clip wider than `narrower_to` is cut at random to any rung
        from that one up to its own. Most of a long sound is like the rest of it, and a short grid
        costs less.
    wider: share of draws in which a clip of at most `wider_below` columns is padded to any of the
        wider rungs: short sounds in long grids, as people ask for them.
    loop_from: clips of at least this width are continuous (rain, a clock). They are cut to the
        widest rung they fill, and repeated instead of padded with silence.
    longer: share of draws in which such a clip is repeated to any of the wider rungs.
    """

    widths: tuple[PositiveInt, ...] | None = None
    fill: str = "crop"
    wider: Share = 0.0
    wider_below: PositiveInt | None = None
    narrower: Share = 0.0
    narrower_to: PositiveInt | None = None
    loop_from: PositiveInt | None = None
    longer: Share = 0.0

    @model_validator(mode="after")
    def _makes_sense(self) -> GridConfig:
        if self.fill not in ("crop", "silence"):
            raise ValueError("fill is 'crop' or 'silence'")
        if self.widths is not None and list(self.widths) != sorted(set(self.widths)):
            raise ValueError("widths must rise")
        if self.wider and (self.fill != "silence" or self.widths is None):
            raise ValueError("wider needs fill 'silence' and a ladder of widths")
        if self.narrower and (self.widths is None or self.narrower_to not in self.widths):
            raise ValueError("narrower needs narrower_to, one of the widths")
        if self.longer and self.loop_from is None:
            raise ValueError("longer needs loop_from, the width from which clips may be repeated")
        if self.fill == "silence" and self.widths is None:
            raise ValueError("fill 'silence' needs a ladder of widths")
        return self


@dataclass(frozen=True)
class Ladder:
    """The rungs grids are fitted to. silence: [F'] tokens of a silent column."""

    config: GridConfig
    silence: np.ndarray | None = None

    def rung(self, width: int) -> int:
        """The width a grid of `width` columns is fitted to; 0 leaves it out."""
        widths = self.config.widths
        if widths is None:
            return width
        if self.silence is not None and not self.loops(width):
            return next((rung for rung in widths if rung >= width), widths[-1])
        return max((rung for rung in widths if rung <= width), default=0)

    def loops(self, width: int) -> bool:
        """Whether a clip of `width` columns is repeated where it ends."""
        return self.config.loop_from is not None and width >= self.config.loop_from

    def fit(self, grid: np.ndarray, width: int, at: float, loops: bool = False) -> np.ndarray:
        """grid [F', L'] as [F', width]: the part at `at` (0..1), or all of it and then silence.

        loops: repeat the grid, starting at `at`, instead of adding silence.
        """
        spare = grid.shape[-1] - width
        if spare >= 0:
            start = round(at * spare)
            return grid[:, start : start + width]
        if loops:
            body = grid[:, :-1]  # the last column is seldom full
            columns = int(at * body.shape[-1]) + np.arange(width)
            return body[:, columns % body.shape[-1]]
        assert self.silence is not None
        return np.concatenate([grid, np.tile(self.silence[:, None], (1, -spare))], axis=1)


class GridDataset:
    """The clips of one or more folders on the rungs of a ladder.

    An index is a pair of clip and rung (`index = clip · rungs + rung`), so that a sampler chooses
    both and a loader can bucket by width.
    """

    def __init__(self, parts: Sequence[TokenDataset], ladder: Ladder, augment: bool = True) -> None:
        self.parts = list(parts)
        self.ladder = ladder
        self.augment = augment
        lengths = [[part.width(item) for item in range(len(part))] for part in self.parts]
        self.widths = sorted({ladder.rung(width) for part in lengths for width in part} - {0})
        given = ladder.config
        if (given.wider or given.narrower or given.longer) and given.widths:
            self.widths = sorted({*self.widths, *given.widths})
        if not self.widths:
            raise DataError("no clip is as wide as the smallest of grids.widths; add a smaller one")
        places = {width: place for place, width in enumerate(self.widths)}
        self.clips: list[tuple[int, int]] = []  # (part, item)
        self.natural: list[int] = []  # the rung each clip fits
        self.lengths: list[int] = []
        for number, part in enumerate(lengths):
            for item, width in enumerate(part):
                rung = ladder.rung(width)
                if rung:
                    self.clips.append((number, item))
                    self.natural.append(places[rung])
                    self.lengths.append(width)

    def __len__(self) -> int:
        return len(self.clips) * len(self.widths)

    def width(self, index: int) -> int:
        """Columns of the item's grid, for bucketing."""
        return self.widths[index % len(self.widths)]

    def label(self, clip: int) -> str:
        """A clip's class, for balancing."""
        part, item = self.clips[clip]
        dataset = self.parts[part]
        labels = dataset.records[dataset.indices[item]].labels
        return labels[0] if labels else ""

    def source(self, clip: int) -> str:
        """The data set a clip is from."""
        part, item = self.clips[clip]
        dataset = self.parts[part]
        return dataset.records[dataset.indices[item]].source

    def label_count(self, clip: int) -> int:
        """A clip's number of labels, for the curriculum."""
        part, item = self.clips[clip]
        dataset = self.parts[part]
        return len(dataset.records[dataset.indices[item]].labels)

    def item(self, index: int, rng: np.random.Generator) -> dict[str, Any]:
        """One grid of the clip, fitted to its rung, with one of its captions."""
        clip = index // len(self.widths)
        part, item = self.clips[clip]
        drawn = self.parts[part].item(item, rng)
        at = float(rng.random()) if self.augment else 0.0
        loops = self.ladder.loops(self.lengths[clip])
        tokens = self.ladder.fit(drawn["tokens"], self.width(index), at, loops)
        return {**drawn, "tokens": tokens}


class RungSampler:
    """Puts the clips of another sampler on rungs: their own, or a wider or narrower one."""

    def __init__(self, clips: ItemSampler, dataset: GridDataset, seed: int) -> None:
        self.clips = clips
        self.seed = seed
        self.rungs = len(dataset.widths)
        self.natural = np.asarray(dataset.natural)
        config = dataset.ladder.config
        below = config.wider_below or max(dataset.lengths)
        self.share = np.where(np.asarray(dataset.lengths) <= below, config.wider, 0.0)
        if config.loop_from is not None:
            loops = np.asarray(dataset.lengths) >= config.loop_from
            self.share = np.where(loops, config.longer, self.share)
        self.narrower = config.narrower
        self.narrowest = dataset.widths.index(config.narrower_to) if config.narrower_to else 0

    def epoch_items(self, epoch: int) -> np.ndarray:
        """[clips of the epoch] int64."""
        clips = np.asarray(self.clips.epoch_items(epoch), dtype=np.int64)
        rng = np.random.default_rng([self.seed, epoch, 0x51DE])
        rung = self.natural[clips]
        room = self.rungs - 1 - rung
        widened = (rng.random(len(clips)) < self.share[clips]) & (room > 0)
        more = 1 + np.floor(rng.random(len(clips)) * room).astype(np.int64)
        rung = np.where(widened, rung + more, rung)
        return clips * self.rungs + (self._narrowed(rung, ~widened, rng) if self.narrower else rung)

    def _narrowed(self, rung: np.ndarray, free: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Move a share of the free clips to any rung from the narrowest to their own."""
        room = rung - self.narrowest
        chosen = free & (room > 0) & (rng.random(len(rung)) < self.narrower)
        lower = self.narrowest + np.floor(rng.random(len(rung)) * room).astype(np.int64)
        return np.where(chosen, lower, rung)


class MixedSampler:
    """An epoch of one folder's clips plus fixed shares of other folders' clips."""

    def __init__(self, groups: Sequence[Sequence[int]], samplers: Sequence[ItemSampler], seed: int):
        """groups[i]: the clips that samplers[i] counts from 0."""
        self.groups = [np.asarray(group, dtype=np.int64) for group in groups]
        self.samplers = list(samplers)
        self.seed = seed

    def epoch_items(self, epoch: int) -> np.ndarray:
        """The clips of all folders, shuffled together."""
        drawn = [
            group[np.asarray(sampler.epoch_items(epoch))]
            for group, sampler in zip(self.groups, self.samplers, strict=True)
        ]
        return epoch_rng(self.seed, epoch).permutation(np.concatenate(drawn))


def mixed_sampler(
    dataset: GridDataset,
    shares: Sequence[float],
    balance: float,
    seed: int,
    favour: Mapping[str, float] | None = None,
) -> ItemSampler:
    """Clips of all parts; part i > 0 is shares[i - 1] of an epoch, the rest is all of part 0.

    favour: factors by which some data sets are drawn more often, by name.
    """
    weights = dict(favour or {})
    if missing := weights.keys() - {dataset.source(clip) for clip in range(len(dataset.clips))}:
        raise DataError(f"data.favour names {sorted(missing)}, but no clip is from there")
    groups: list[list[int]] = [[] for _ in dataset.parts]
    for clip, (part, _) in enumerate(dataset.clips):
        groups[part].append(clip)
    if not all(groups):
        raise DataError("a folder of data.mix has no clip that fits grids.widths")
    main = len(groups[0]) / (1.0 - sum(shares))
    sizes = [len(groups[0]), *(max(1, round(share * main)) for share in shares)]
    samplers = [
        BalancedSampler(
            [(dataset.source(clip), dataset.label(clip) if balance else "") for clip in group],
            seed + number,
            balance=balance,
            size=size,
            favour=lambda label: weights.get(label[0], 1.0),  # type: ignore[index]
        )
        for number, (group, size) in enumerate(zip(groups, sizes, strict=True))
    ]
    return samplers[0] if len(samplers) == 1 else MixedSampler(groups, samplers, seed)
