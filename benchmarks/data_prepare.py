"""How preparation scales: python benchmarks/data_prepare.py [--engine ray] [--clips 240]

Prepares the same made-up clips with one worker and with several, checks that the bytes are the
same, and prints the ratio of the speeds, of the processor time, and what AudioSet would need.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
from pathlib import Path

import numpy as np
import soundfile

from common import check
from diffsound.data.clip import PrepareSettings
from diffsound.data.engines import MapEngine, SerialEngine, available_cores, make_engine
from diffsound.data.prepare import PrepareResult, prepare
from diffsound.data.sources import open_source

AUDIOSET_HOURS = 5300
CLIP_SECONDS = 10.0


def make_clips(folder: Path, count: int) -> None:
    """Stereo 44.1 kHz FLAC noise of ten seconds, as costly to read and resample as AudioSet's."""
    rng = np.random.default_rng(0)
    for i in range(count):
        wave = 0.1 * rng.standard_normal((round(CLIP_SECONDS * 44100), 2))
        soundfile.write(folder / f"clip {i:04d}.flac", wave, 44100)


def run(source: Path, out: Path, engine: MapEngine) -> tuple[PrepareResult, float]:
    """Prepare; the result, and the processor seconds it took in this process and its children."""
    settings = PrepareSettings(clips_per_shard=16, store_mel=True)
    before = processor_seconds()
    result = prepare(open_source(f"folder:{source}"), out, settings, engine)
    return result, processor_seconds() - before


def processor_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def same_bytes(first: Path, second: Path) -> bool:
    names = sorted(path.name for path in first.iterdir())
    return names == sorted(path.name for path in second.iterdir()) and all(
        (first / name).read_bytes() == (second / name).read_bytes() for name in names
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=int, default=240)
    parser.add_argument("--engine", default="processes", choices=["processes", "ray"])
    parser.add_argument("--workers", type=int, default=available_cores())
    parser.add_argument("--address")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        source, one, many = (Path(temporary) / name for name in ("clips", "one", "many"))
        source.mkdir()
        make_clips(source, options.clips)
        run(source, Path(temporary) / "warm", SerialEngine())
        alone, work = run(source, one, SerialEngine())
        engine = make_engine(options.engine, options.workers, options.address)
        together, shared_work = run(source, many, engine)
        same = same_bytes(one, many)
    ratio = alone.elapsed / together.elapsed
    print(f"same bytes from both: {'PASS' if same else 'FAIL'}")
    if options.engine == "processes":
        # Independent of what else the machine is doing: starting workers is all they add.
        print(f"processor time of the pool: {shared_work / work:.2f} times that of one process")
    per_hour = work / (alone.made_seconds / 3600)
    core_hours = AUDIOSET_HOURS * per_hour / 3600
    print(f"an hour of audio takes {per_hour:.0f} processor-seconds")
    print(
        f"AudioSet, {AUDIOSET_HOURS} h: {core_hours:.0f} core-hours; "
        + ", ".join(f"{core_hours / cores:.1f} h on {cores} cores" for cores in (2, 16, 128))
    )
    # Three quarters: a worker takes a few seconds to start, the planning is one process's.
    what = f"{options.workers} workers / one ({options.engine})"
    fast = check(what, ratio, at_least=0.75 * options.workers)
    raise SystemExit(0 if same and fast else 1)


if __name__ == "__main__":
    main()
