"""Does training ever wait for data? Loader clips/s against the small codec's training clips/s.

    python benchmarks/loader_speed.py                    # synthetic clips
    python benchmarks/loader_speed.py data/corpus        # a prepared folder
    python benchmarks/loader_speed.py data/corpus --cost-only   # on a machine busy with other work

Prints first what a clip costs the loader, as a share of the processor time it costs the codec (this
does not depend on what else the machine does); then, for 0, 1 and 2 workers, how many clips/s
the loader makes alone as a multiple of what the codec trains on, and the share of a real training
loop's time spent waiting for its next batch. A ratio well above 1 and a share of at most 5 % mean
the data do not hold the training up.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Iterable

import numpy as np
import torch

from common import check
from diffsound.audio.mel import MelConfig, MelFrontEnd
from diffsound.codec.codec import Codec
from diffsound.codec.config import CodecConfig
from diffsound.data.datasets import AugmentConfig, ClipData, WaveDataset
from diffsound.data.loaders import ClipDataset, EpochLoader, ShuffledSampler
from diffsound.data.record import AudioLocation, Record
from diffsound.data.shards import PreparedData

RATE = 22050
MOST_WAITING = 0.05  # of training; below it a faster loader would not be noticed
AUGMENT = AugmentConfig(fill="chain", speed=0.05)


class CodecTraining:
    """A step of the small codec: mel, tokens, the likelihood of its texture, AdamW."""

    def __init__(self) -> None:
        self.front_end = MelFrontEnd(MelConfig())
        self.codec = Codec(CodecConfig.small()).train()
        self.codec.freeze_tokens()
        self.optimizer = torch.optim.AdamW(self.codec.parameters(), lr=3e-4)

    def step(self, wave: torch.Tensor) -> None:
        with torch.no_grad():
            mel = self.front_end(wave)
        loss = -self.codec(mel).log_prob.mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()


class Synthetic:
    """Clips of noise in memory, 0.3 to 5 s long."""

    def __init__(self, count: int = 400) -> None:
        rng = np.random.default_rng(0)
        self.waves = [
            (0.1 * rng.standard_normal(int(RATE * seconds))).astype(np.float32)
            for seconds in rng.uniform(0.3, 5, count)
        ]
        self.records = [
            Record(f"clip-{i}", AudioLocation(""), labels=(f"label {i % 20}",))
            for i in range(count)
        ]

    def wave(self, i: int) -> np.ndarray:
        return self.waves[i]


def clips_per_second(batches: Iterable[dict], batch_size: int, seconds: float) -> float:
    iterator = iter(batches)
    next(iterator)  # starts the workers
    done, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        next(iterator)
        done += batch_size
    return done / (time.perf_counter() - started)


def waiting_share(batches: Iterable[dict], training: CodecTraining, seconds: float) -> float:
    iterator = iter(batches)
    training.step(next(iterator)["wave"])
    waited, started = 0.0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        asked = time.perf_counter()
        batch = next(iterator)
        waited += time.perf_counter() - asked
        training.step(batch["wave"])
    return waited / (time.perf_counter() - started)


def cost(work: Callable[[], object], clips: int, seconds: float) -> float:
    """Processor seconds per clip of something that handles `clips` at a time, on one thread."""
    work()
    done, started, spent = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - started < seconds or done < 3 * clips:
        work()
        done += clips
    return (time.process_time() - spent) / done


def endless(loader: EpochLoader) -> Iterable[dict]:
    epoch = 0
    while True:
        yield from loader.batches(epoch)
        epoch += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", help="a prepared folder; default: synthetic clips")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--window", type=float, default=2.5, help="seconds per clip")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--cost-only", action="store_true", help="processor time only")
    options = parser.parse_args()

    data: ClipData = PreparedData.open(options.folder) if options.folder else Synthetic()
    samples = int(options.window * RATE)
    indices = range(len(data.records))

    datasets: dict[str, ClipDataset] = {}
    if options.folder:
        datasets["decoding each time"] = WaveDataset(data, indices, samples, AUGMENT)
    started = time.perf_counter()
    datasets["int16 cache"] = WaveDataset(data, indices, samples, AUGMENT, cache=True)
    print(f"the cache was filled in {time.perf_counter() - started:.1f} s")

    training = CodecTraining()
    wave = 0.1 * torch.randn(options.batch, samples)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    good = []
    trained = cost(lambda: training.step(wave), options.batch, options.seconds)
    for name, dataset in datasets.items():
        loader = EpochLoader(dataset, ShuffledSampler(len(dataset)), options.batch)
        batches = iter(endless(loader))
        loaded = cost(functools.partial(next, batches), options.batch, options.seconds)
        what = f"{name}: cost of a clip / the codec's"
        good.append(check(what, loaded / trained, at_most=MOST_WAITING, form=".1%"))
    torch.set_num_threads(threads)
    if options.cost_only:
        raise SystemExit(0 if good[-1] else 1)

    steps, started = 0, time.perf_counter()
    while time.perf_counter() - started < options.seconds:
        training.step(wave)
        steps += 1
    codec = steps * options.batch / (time.perf_counter() - started)
    print(f"small codec trains on {codec:.1f} clips/s of {options.window} s", flush=True)
    print("clips | workers | alone, x codec | waiting in training")
    for name, dataset in datasets.items():
        shares = []
        for workers in (0, 1, 2):
            sampler = ShuffledSampler(len(dataset))
            loader = EpochLoader(dataset, sampler, options.batch, workers=workers)
            speed = clips_per_second(endless(loader), options.batch, options.seconds)
            share = waiting_share(endless(loader), training, options.seconds)
            shares.append(share)
            print(f"{name} | {workers} | {speed / codec:.1f} | {share:.1%}", flush=True)
        what = f"{name}: waiting, with the best workers"
        good.append(check(what, min(shares), at_most=MOST_WAITING, form=".1%"))
    # The last dataset is the one that training uses.
    raise SystemExit(0 if good[-1] else 1)


if __name__ == "__main__":
    main()
