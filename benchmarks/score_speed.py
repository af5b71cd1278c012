"""How fast clips are scored, in seconds of sound for each second of work.

    python benchmarks/score_speed.py [--clips 200] [--classifier runs/classifier]

Synthetic clips of 5 s through the small classifier, a first time, a second time from the cache,
and the metrics on their features. Ends with an error if 1 000 clips would take over 3 minutes.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from diffsound.audio.mel import MelConfig
from diffsound.evaluation.classifier import Classifier, ClassifierConfig, load_classifier
from diffsound.evaluation.clips import WaveClip
from diffsound.evaluation.compare import compare
from diffsound.evaluation.feature_cache import FeatureCache
from diffsound.evaluation.features import BATCH, FeatureSet, extract

SECONDS = 5.0
BUDGET = 180.0  # seconds for 1 000 clips


def clips(count: int, rate: int, seed: int = 0) -> Iterator[WaveClip]:
    """Noise in bursts: what is in a clip does not change how long it takes."""
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        wave = 0.1 * rng.standard_normal(round(SECONDS * rate), dtype=np.float32)
        yield WaveClip(f"clip-{number}", wave, rate)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=int, default=200)
    parser.add_argument("--classifier", type=Path)
    options = parser.parse_args()
    if options.classifier:
        classifier = load_classifier(options.classifier)
    else:
        labels = tuple(f"label {number}" for number in range(50))
        classifier = Classifier(ClassifierConfig(mel=MelConfig.full_band(), labels=labels))
    rate, count = classifier.config.mel.sample_rate, options.clips

    def timed(cache: FeatureCache) -> tuple[float, FeatureSet]:
        start = time.perf_counter()
        found = extract(classifier, clips(count, rate), cache=cache)
        return time.perf_counter() - start, found

    extract(classifier, clips(2 * BATCH, rate, seed=1))
    with tempfile.TemporaryDirectory() as folder, FeatureCache(Path(folder) / "cache") as cache:
        before = _peak()
        first, found = timed(cache)
        grown = _peak() - before
        second, again = timed(cache)
    start = time.perf_counter()
    compare(found, again, allow_few=True)
    scoring = time.perf_counter() - start
    print(f"first time     {count * SECONDS / first:8.1f} s of sound a second")
    print(f"from the cache {first / second:8.1f} times as fast")
    print(f"the metrics    {scoring / first:8.2f} of the first time, intervals included")
    print(f"memory grew by {grown / 2**20:8.1f} MB over {count} clips")
    thousand = first / count * 1000 + scoring
    print(f"1 000 clips    {thousand / BUDGET:8.2f} of the budget")
    return 0 if thousand <= BUDGET else 1


def _peak() -> int:
    """Largest resident memory so far, bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main())
