"""Loaders for the stages that learn from tokens and texts."""

from __future__ import annotations

import numpy as np
import torch

from diffsound.audio.mel import MelFrontEnd
from diffsound.codec.codec import Codec
from diffsound.data.datasets import TokenDataset
from diffsound.data.loaders import EpochLoader, ItemSampler
from diffsound.data.samplers import SequentialSampler
from diffsound.data.shards import PreparedData
from diffsound.training.grids import GridDataset, Ladder, RungSampler, mixed_sampler
from diffsound.training.sets import Process, clips_of, spread
from diffsound.training.token_run import TokenRun


def token_clips(config: TokenRun, data: PreparedData, split: str, augment: bool) -> TokenDataset:
    """The split's clips as tokens with one of their captions."""
    indices = clips_of(data, config.data, split)
    return TokenDataset(data, indices, codec=config.tokens, encoder=config.text, augment=augment)


def class_sampler(config: TokenRun, dataset: GridDataset) -> ItemSampler:
    """Clips of all folders in their shares, balanced and favoured as the data group says."""
    shares = [folder.share for folder in config.data.mix]
    return mixed_sampler(
        dataset, shares, config.data.balance, config.train.seed, config.data.favour
    )


def grid_loader(
    config: TokenRun, dataset: GridDataset, sampler: ItemSampler, process: Process
) -> EpochLoader:
    """Batches of grids of one width each."""
    return EpochLoader(
        dataset,
        RungSampler(sampler, dataset, config.train.seed),
        config.train.batch_size,
        seed=config.train.seed,
        rank=process.rank,
        world=process.world,
        workers=config.data.workers,
        bucket_by=dataset.width,
    )


def fixed_grids(config: TokenRun, clips: TokenDataset, ladder: Ladder) -> tuple[EpochLoader, int]:
    """The same grids of some held-out clips at every call, and how many clips they are."""
    dataset = GridDataset([clips], ladder, augment=False)
    chosen = spread(range(len(dataset.clips)), config.valid_clips)
    items = [clip * len(dataset.widths) + dataset.natural[clip] for clip in chosen]
    loader = EpochLoader(
        dataset, _Chosen(items), config.train.batch_size, bucket_by=dataset.width, drop_last=False
    )
    return loader, len(chosen)


def ladder_for(config: TokenRun, codec: Codec | None, front_end: MelFrontEnd) -> Ladder:
    """The run's ladder of widths, with the codec's tokens of silence if it fills up with them."""
    silence = None
    if config.grids.fill == "silence" and codec is not None:
        silence = silent_column(codec, front_end)
    return Ladder(config.grids, silence)


@torch.no_grad()
def silent_column(codec: Codec, front_end: MelFrontEnd) -> np.ndarray:
    """The tokens [F'] the codec gives for silence, away from any sound."""
    columns = 33
    samples = columns * codec.time_stride * front_end.config.hop_length
    mel = front_end(torch.zeros(1, samples))[..., : columns * codec.time_stride]
    return codec.encode(mel)[0, :, columns // 2].numpy()


class _Chosen(SequentialSampler):
    """The same items in every epoch."""

    def __init__(self, items: list[int]) -> None:
        super().__init__(len(items))
        self.items = np.asarray(items)

    def epoch_items(self, epoch: int) -> np.ndarray:
        return self.items
