"""Reading shards from front to back, for data too big to hold an index of every clip.

    make = functools.partial(WaveDataset, samples=55125, augment=AugmentConfig(), labels=labels)
    loader = StreamLoader("data/audioset", make, batch_size=32, workers=4, streams=4)
    for batch in loader.batches(epoch, start): ...

The shards of a prepared folder are dealt to streams. A stream reads its shards one after another
into a buffer of clips and draws from that at random; the buffer is the "data" of an ordinary
dataset, so augmentation (other clips mixed in included) is the same as with random access. Streams
take turns, a batch each, whichever worker reads them: the batches do not depend on how many workers
there are. An epoch is a number of batches; a stream that reaches its end goes on with its shards in
a new order.
"""

from __future__ import annotations

import functools
import io
import itertools
import json
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from diffsound.audio.io import read_audio
from diffsound.data.datasets import ClipData
from diffsound.data.index import ClipsIndex, read_index
from diffsound.data.loaders import ClipDataset, Collate, Item, collate
from diffsound.data.record import AudioLocation, Record
from diffsound.errors import ConfigError, DataError

MakeDataset = Callable[[ClipData, Sequence[int]], ClipDataset]
Keep = Callable[[Record], bool]


def read_clips(path: str | Path, clips: int) -> Iterator[tuple[Record, bytes]]:
    """The clips of a shard in order: record and encoded audio, in one pass without seeking.

    clips: how many the index says there are; a tar cut between members shows no other sign.
    """
    seen = 0
    try:
        with tarfile.open(path, mode="r|") as tar:
            found: dict[str, bytes] = {}
            current = None
            for member in tar:
                key, _, suffix = member.name.partition(".")
                if key != current:
                    current, found = key, {}
                stream = tar.extractfile(member) if suffix in ("flac", "json") else None
                if stream is None:
                    continue
                found[suffix] = stream.read()
                if len(found) == 2:
                    seen += 1
                    location = AudioLocation(str(path), member=f"{key}.flac")
                    yield Record.from_json(json.loads(found["json"]), location), found["flac"]
    except (OSError, tarfile.TarError) as error:
        raise DataError(f"cannot read the shard {path}: {error}; prepare it again") from error
    if seen != clips:
        raise DataError(f"the shard {path} holds {seen} of its {clips} clips; prepare it again")


class ClipBuffer:
    """A fixed number of clips that stream through: the data of the dataset drawn from it."""

    def __init__(self, clips: Sequence[tuple[Record, bytes]], sample_rate: int) -> None:
        self.records = [record for record, _ in clips]
        self._encoded = [encoded for _, encoded in clips]
        self._rate = sample_rate

    def __len__(self) -> int:
        return len(self.records)

    def wave(self, i: int) -> np.ndarray:
        """float32 [samples] of the clip now in place `i`."""
        return read_audio(io.BytesIO(self._encoded[i]), sample_rate=self._rate)

    def replace(self, i: int, clip: tuple[Record, bytes]) -> None:
        """Put the next clip where one was drawn."""
        self.records[i], self._encoded[i] = clip


class StreamingDataset(IterableDataset[Item]):
    """The batches of one epoch of one rank, from batch `start` on."""

    def __init__(
        self,
        shards: Sequence[tuple[str, int]],
        make: MakeDataset,
        *,
        sample_rate: int,
        batch_size: int,
        batches: int,
        epoch: int,
        start: int,
        seed: int,
        rank: int,
        world: int,
        streams: int,
        buffer: int,
        keep: Keep | None,
        collate: Collate,
    ) -> None:
        self.shards = shards  # path and number of clips of each
        self.make = make
        self.sample_rate = sample_rate
        self.batch_size = batch_size
        self.total, self.start = batches, start
        self.epoch, self.seed = epoch, seed
        self.rank, self.world, self.streams = rank, world, streams
        self.buffer = buffer
        self.keep = keep
        self.collate = collate

    def __iter__(self) -> Iterator[Item]:
        """Of the batches start..total-1, those of this worker: batch n is of stream n % streams."""
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        running: dict[int, Iterator[Item]] = {}
        # The DataLoader asks its workers in turn, beginning with the first, wherever we start.
        for number in range(self.start + worker, self.total, workers):
            stream = number % self.streams
            if stream not in running:
                done = -(-(self.start - stream) // self.streams)
                running[stream] = self._stream(stream, max(0, done))
            yield next(running[stream])

    def _stream(self, stream: int, done: int) -> Iterator[Item]:
        """Endless batches of one stream, the first `done` passed over without decoding."""
        number = self.rank * self.streams + stream
        rng = np.random.default_rng([self.seed, self.epoch, number, 0])
        source = self._clips(number, rng)
        held = ClipBuffer(list(itertools.islice(source, self.buffer)), self.sample_rate)
        dataset = self.make(held, range(len(held)))
        count = 0
        while True:
            items = []
            for _ in range(self.batch_size):
                place = int(rng.integers(len(held)))
                if count >= done * self.batch_size:
                    own = np.random.default_rng([self.seed, self.epoch, number, 1, count])
                    items.append(dataset.item(place, own))
                held.replace(place, next(source))
                count += 1
            if items:
                yield self.collate(items)

    def _clips(self, number: int, rng: np.random.Generator) -> Iterator[tuple[Record, bytes]]:
        """Every wanted clip of the stream's shards, again and again in new orders."""
        order = np.random.default_rng([self.seed, self.epoch]).permutation(len(self.shards))
        mine = order[number :: self.streams * self.world]
        while True:
            found = False
            for shard in mine:
                for record, encoded in read_clips(*self.shards[int(shard)]):
                    if self.keep is None or self.keep(record):
                        found = True
                        yield record, encoded
            if not found:
                raise DataError("none of the clips in a stream's shards is wanted by the filter")
            mine = rng.permutation(mine)


class StreamLoader:
    """Batches of a prepared folder's clips, read sequentially; the face of `EpochLoader`.

    The batches are a function of (seed, epoch, batch, rank, world, streams, buffer), not of the
    number of workers, which must divide `streams` to share them out evenly.
    """

    def __init__(
        self,
        folder: str | Path,
        make: MakeDataset,
        batch_size: int,
        *,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        workers: int = 0,
        streams: int = 4,
        buffer: int = 256,
        keep: Keep | None = None,
        batches_per_epoch: int | None = None,
        prefetch: int = 4,
        collate: Collate = collate,
    ) -> None:
        """make: of (data, indices) a dataset. keep: which records are wanted (e.g. one split).

        batches_per_epoch: of each rank; by default as many as the folder's clips fill.
        buffer: clips held encoded per stream, about 100 kB each.
        """
        index = read_index(ClipsIndex, folder)
        if index is None or not index.complete:
            raise DataError(
                f"{folder} is not a finished prepared folder; make one with: diffsound data prepare"
            )
        if len(index.shards) < streams * world:
            raise DataError(
                f"{folder} has {len(index.shards)} shards, too few for {streams} streams on each "
                f"of {world} ranks; use fewer streams, or random access with EpochLoader"
            )
        if workers and streams % workers:
            raise ConfigError(f"{workers} workers cannot share {streams} streams evenly")
        self.workers = workers
        self.prefetch = prefetch
        if batches_per_epoch is None:
            batches_per_epoch = max(1, index.clips // (batch_size * world))
        self.batches_per_epoch = batches_per_epoch
        self._dataset = functools.partial(
            StreamingDataset,
            [(str(Path(folder) / shard.name), shard.clips) for shard in index.shards],
            make,
            sample_rate=index.mel.sample_rate,
            batch_size=batch_size,
            batches=self.batches_per_epoch,
            seed=seed,
            rank=rank,
            world=world,
            streams=streams,
            buffer=buffer,
            keep=keep,
            collate=collate,
        )

    def batches(self, epoch: int, start: int = 0) -> Iterator[dict[str, Any]]:
        """The epoch's batches of this rank from batch `start` on.

        Those before it are read again, though not decoded: the state of a shuffle buffer is in
        what went through it.
        """
        yield from DataLoader(
            self._dataset(epoch=epoch, start=start),
            batch_size=None,
            num_workers=self.workers,
            prefetch_factor=self.prefetch if self.workers else None,
        )

    def batches_in(self, epoch: int) -> int:
        """How many batches every epoch has."""
        return self.batches_per_epoch

    def __len__(self) -> int:
        return self.batches_per_epoch
