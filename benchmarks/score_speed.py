"""How fast clips are scored, in seconds of sound for each second of work.

    python benchmarks/score_speed.py [--quick] [--classifier runs/classifier]

1 000 synthetic clips of 5 s in files through the small classifier (the bundled one's size, unless
a run is named), a first time, a second time from the cache, and every metric with its interval on
1 000 against 1 000 features. PASS if reading, listening and scoring take at most 3 minutes, on as
many threads as torch has (two on the machine the target is for). --quick listens to 100 clips and
multiplies.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from diffsound.audio.io import write_audio
from diffsound.audio.mel import MelConfig
from diffsound.evaluation.compare import compare
from diffsound.evaluation.features import BATCH, FeatureCache, FeatureSet, FileClip, extract
from diffsound.judges.classifier import Classifier, ClassifierConfig, load_classifier

SECONDS = 5.0
CLIPS = 1000
BUDGET = 180.0  # seconds for so many clips


def write_clips(folder: Path, count: int, rate: int, seed: int) -> list[FileClip]:
    """Noise, each clip another: what is in a clip does not change how long it takes."""
    clips = []
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        wave = 0.1 * rng.standard_normal(round(SECONDS * rate), dtype=np.float32)
        clips.append(FileClip(f"{seed}-{number}", folder / f"{seed}-{number}.wav"))
        write_audio(clips[-1].path, wave, rate)
    return clips


def features_of(classifier: Classifier, seed: int) -> FeatureSet:
    """As many features as there are clips, for the metrics' time alone."""
    rng = np.random.default_rng(seed)
    names = tuple(f"{number}" for number in range(CLIPS))
    wide = rng.standard_normal((CLIPS, classifier.feature_dim)).astype(np.float32)
    logits = rng.standard_normal((CLIPS, len(classifier.config.labels))).astype(np.float32)
    blank = np.zeros(CLIPS, dtype=np.float32)
    return FeatureSet(
        names, names, wide, logits, np.zeros((CLIPS, 256), np.int8), blank, blank, "x", SECONDS
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--classifier", type=Path)
    options = parser.parse_args()
    if options.classifier:
        classifier = load_classifier(options.classifier)
    else:
        labels = tuple(f"label {number}" for number in range(50))
        classifier = Classifier(ClassifierConfig(mel=MelConfig.full_band(), labels=labels))
    rate, count = classifier.config.mel.sample_rate, 100 if options.quick else CLIPS

    with tempfile.TemporaryDirectory() as name, FeatureCache(Path(name) / "cache") as cache:
        folder = Path(name)
        extract(classifier, write_clips(folder, 2 * BATCH, rate, seed=1))  # warms up
        clips = write_clips(folder, count, rate, seed=0)
        before = _peak()
        first = timed(lambda: extract(classifier, clips, cache=cache))
        grown = _peak() - before
        second = timed(lambda: extract(classifier, clips, cache=cache))
    sets = features_of(classifier, 0), features_of(classifier, 1)
    scoring = timed(lambda: compare(*sets))
    total = first / count * CLIPS + scoring
    print(f"threads        {torch.get_num_threads():8d}")
    print(f"first time     {count * SECONDS / first:8.1f} s of sound a second")
    print(f"from the cache {first / second:8.1f} times as fast")
    print(f"the metrics    {scoring / total:8.2f} of the whole time, intervals included")
    print(f"memory grew by {grown / 2**20:8.1f} MB over {count} clips")
    verdict = "PASS" if total <= BUDGET else "FAIL"
    print(f"1 000 clips    {total / BUDGET:8.2f} of the budget of {BUDGET:.0f} s: {verdict}")
    return 0 if total <= BUDGET else 1


def timed(work: Callable[[], object]) -> float:
    """Seconds that `work` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _peak() -> int:
    """Largest resident memory so far, bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main())
