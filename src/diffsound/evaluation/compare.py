"""Every metric of a generated set against a real one; and do FID and KL measure anything?

KL is between the classifier's verdicts on a real clip and on one generated from its text. As in the
published code, the direction is KL(real ‖ generated), with softmaxed logits and 1e-6 added to the
generated probability inside its logarithm, and the mean is over all (real clip, sample) pairs.

The study of section VI-C (figure 2) disturbs real clips level by level, by
Gaussian noise, by masking or by another sound; the metrics of the disturbed set against the
originals should rise with every level.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from diffsound.audio.io import fit_length
from diffsound.audio.mel import MelFrontEnd
from diffsound.audio.mixing import SILENT, decibels, rms
from diffsound.audio.spectrogram import spectrogram_image
from diffsound.data.shards import PreparedData
from diffsound.errors import InputError
from diffsound.evaluation.features import (
    FeatureCache,
    FeatureSet,
    ScoredClip,
    check_comparable,
    clips_of_data,
    extract,
    wave_clip,
)
from diffsound.evaluation.metrics import (
    FID_RESAMPLES,
    LEVEL,
    RESAMPLES,
    Score,
    clips_needed,
    fid,
    frechet_distance,
    inception_score,
    kernel_distance,
    manifold_scores,
    mean_score,
    moments,
    realism,
    softmax,
)
from diffsound.evaluation.pages import new_figure
from diffsound.evaluation.sets import choose_examples, judge_folder, write_json
from diffsound.files import atomic_write, make_folder
from diffsound.judges.classifier import Classifier, load_classifier
from diffsound.model.bundle import resolve

EPSILON = 1e-6
KL_PROTOCOL = (
    "KL(real || generated) in nats, softmax probabilities, 1e-6 added to the generated one, "
    "mean over (clip, sample) pairs"
)
# Level of the original over the noise or the other sound in dB, and masked shares of the time; the
# first of each leaves the original as it is.
LEVELS: dict[str, tuple[float, ...]] = {
    "noise": (float("inf"), 30.0, 20.0, 10.0, 0.0, -10.0),
    "mask": (0.0, 0.15, 0.3, 0.45, 0.6, 0.75),
    "other": (float("inf"), 20.0, 10.0, 5.0, 0.0, -10.0),
}
_STRETCHES = 8  # a clip is masked in this many places
_TITLES = {
    "noise": "Gaussian noise (dB below the sound)",
    "mask": "masked share of the time",
    "other": "interfering sound (dB below the sound)",
}


@dataclass(frozen=True)
class Comparison:
    """Scores by name, and what is needed to read them."""

    scores: dict[str, Score]
    protocol: dict[str, Any]


def compare(
    real: FeatureSet,
    fake: FeatureSet,
    *,
    of: Mapping[str, str] | None = None,
    allow_few: bool = False,
    resamples: int | None = None,
    seed: int = 0,
) -> Comparison:
    """Score generated clips against real ones.

    of: the real clip of each generated one, for KL (see `pair`). resamples: for the intervals; 0
    for none.
    """
    check_comparable(real, fake)
    many = RESAMPLES if resamples is None else resamples
    few = FID_RESAMPLES if resamples is None else resamples
    partner = pair(real.ids, fake.ids, of)
    scores = [
        fid(real.features, fake.features, allow_few=allow_few, resamples=few, seed=seed),
        kernel_distance(real.features, fake.features, resamples=few, seed=seed),
        kl(real.logits, fake.logits, partner, resamples=many, seed=seed),
        inception_score(softmax(fake.logits), resamples=many, seed=seed),
        *manifold_scores(real.features, fake.features, resamples=many, seed=seed),
    ]
    protocol = {
        "classifier": real.classifier,
        "feature_dim": int(real.features.shape[1]),
        "real_clips": len(real),
        "generated_clips": len(fake),
        "unreadable": len(real.failed) + len(fake.failed),
        "seconds": real.window,
        "interval": f"{LEVEL:.0%}, bootstrap over clips",
        "seed": seed,
    }
    return Comparison({score.name: score for score in scores}, protocol)


def clip_scores(
    labels: Sequence[str], real: FeatureSet, fake: FeatureSet, of: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """A JSON object for every generated clip, in order.

    realism: 1 or more is as close to real clips as they are to each other; None with too few.
    kl: to its real clip, in nats. label, probability: the classifier's first guess.
    """
    check_comparable(real, fake)
    partner = pair(real.ids, fake.ids, of)
    divergence = kl_per_pair(real.logits[partner], fake.logits)
    real_like = realism(real.features, fake.features) if len(real) > 3 else None
    guesses = softmax(fake.logits)
    return [
        {
            "id": name,
            "realism": None if real_like is None else float(real_like[at]),
            "kl": float(divergence[at]),
            "label": labels[int(guesses[at].argmax())],
            "probability": float(guesses[at].max()),
            "level_db": float(fake.level[at]),
            "of": real.ids[partner[at]],
        }
        for at, name in enumerate(fake.ids)
    ]


def kl_per_pair(real: np.ndarray, fake: np.ndarray) -> np.ndarray:
    """Σ p_real (log p_real - log(p_fake + 1e-6)) of logits [N, classes] each: [N] nats."""
    if real.shape != fake.shape:
        raise InputError(f"logits {list(real.shape)} and {list(fake.shape)} are not pairs")
    if not (np.isfinite(real).all() and np.isfinite(fake).all()):
        raise InputError("some logits are not finite; the classifier or a clip is broken")
    log_real, log_fake = (
        torch.from_numpy(np.array(logits, np.float64)).log_softmax(1) for logits in (real, fake)
    )
    divergence = log_real.exp() * (log_real - (log_fake.exp() + EPSILON).log())
    return np.asarray(divergence.sum(1).numpy())


def pair(
    real_ids: Sequence[str], fake_ids: Sequence[str], of: Mapping[str, str] | None = None
) -> np.ndarray:
    """For each generated clip the position of its real one, int [M].

    of: the real clip's id of each generated one; None: they have the same ids.
    """
    place = {name: at for at, name in enumerate(real_ids)}
    partners = [place.get(name if of is None else of.get(name, "")) for name in fake_ids]
    if None in partners:
        raise InputError(
            f"the generated clip '{fake_ids[partners.index(None)]}' has no real clip to be "
            "compared with; the two sets do not match"
        )
    return np.asarray(partners, dtype=np.int64)


def kl(
    real: np.ndarray,
    fake: np.ndarray,
    partner: np.ndarray,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Score:
    """Mean KL of generated logits [M, classes] to those [N, classes] of their real clips."""
    values = kl_per_pair(real[partner], fake)
    # Samples of one text share their real clip, so they are resampled together.
    return mean_score(
        "KL",
        values,
        better="lower",
        note=KL_PROTOCOL,
        groups=partner.tolist(),
        resamples=resamples,
        seed=seed,
    )


def study_data(
    data: str | Path,
    out: str | Path,
    *,
    classifier: str | Path | None = None,
    split: str = "test",
    clips: int | None = None,
    seconds: float = 5.0,
    seed: int = 0,
) -> list[Path]:
    """Study clips of a prepared folder, its training clips as interfering sounds.

    Writes OUT/figure-2.json and figure-2.png, disturbed spectrograms over the curves.
    """
    judge = load_classifier(judge_folder(resolve(None), classifier, "classifier"))
    prepared = PreparedData.open(data)
    examples, _ = choose_examples(prepared, split, clips, seed)
    chosen = clips_of_data(prepared, [prepared.position(example.id) for example in examples])
    others = clips_of_data(prepared, prepared.where(split="train")) or chosen
    out = make_folder(Path(out))
    with FeatureCache(out / "features.sqlite") as cache:
        result = study(judge, chosen, others, seconds=seconds, cache=cache, seed=seed)
    write_json(out / "figure-2.json", result)
    draw_study(out / "figure-2.png", result, judge, chosen[0], others, seconds=seconds, seed=seed)
    return [out / "figure-2.json", out / "figure-2.png"]


def study(
    classifier: Classifier,
    clips: Sequence[ScoredClip],
    others: Sequence[ScoredClip],
    *,
    seconds: float = 5.0,
    cache: FeatureCache | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Disturb the clips level by level and measure them against themselves; the points as JSON.

    others: where interfering sounds are drawn from (the paper: the training set). Each clip gets
    the same noise, mask positions and other sound at all levels, only more of it.
    """
    if len(clips) < 2 or not others:
        raise InputError("the study needs at least 2 clips, and others to interfere with them")
    original = extract(classifier, clips, seconds=seconds, cache=cache)
    if len(original) < 2:
        raise InputError(f"only {len(original)} of {len(clips)} clips can be read")
    readable = [clip for clip in clips if clip.id not in original.failed]
    rate = classifier.config.mel.sample_rate
    points: list[dict[str, Any]] = []
    rising: dict[str, dict[str, bool]] = {}
    for kind, amounts in LEVELS.items():
        curve: list[dict[str, Any]] = []
        for level, amount in enumerate(amounts):
            made = original
            if level:
                disturbed = _disturbed(readable, kind, amount, others, rate, seconds, seed)
                made = extract(classifier, disturbed, seconds=seconds, cache=cache)
            partner = pair(original.ids, made.ids)
            curve.append(
                {
                    "kind": kind,
                    "level": level,
                    "amount": float(amount) if np.isfinite(amount) else None,
                    "fid": frechet_distance(moments(original.features), moments(made.features)),
                    "kl": float(kl_per_pair(original.logits[partner], made.logits).mean()),
                    "kernel_distance": kernel_distance(
                        original.features, made.features, resamples=0
                    ).value,
                }
            )
        metrics = ("fid", "kl", "kernel_distance")
        rising[kind] = {name: is_rising([point[name] for point in curve]) for name in metrics}
        points += curve
    needed = clips_needed(classifier.feature_dim)
    return {
        "points": points,
        "rising": rising,
        "clips": len(original),
        "classifier": original.classifier,
        "note": "" if len(original) >= needed else f"fewer than {needed} clips: FID is too large",
    }


def is_rising(values: Sequence[float]) -> bool:
    """Whether every value is above the one before."""
    return all(b > a for a, b in itertools.pairwise(values))


def _disturbed(
    clips: Sequence[ScoredClip],
    kind: str,
    amount: float,
    others: Sequence[ScoredClip],
    rate: int,
    seconds: float,
    seed: int,
) -> Iterator[ScoredClip]:
    for at, clip in enumerate(clips):
        wave = fit_length(clip.wave(rate), round(seconds * rate))
        rng = np.random.default_rng([seed, at])
        if kind == "noise":
            wave = add_noise(wave, amount, rng)
        elif kind == "mask":
            wave = mask_time(wave, amount, rng)
        else:
            wave = add_sound(wave, others[int(rng.integers(len(others)))].wave(rate), amount)
        yield wave_clip(clip.id, wave, rate)


def add_noise(wave: np.ndarray, snr_db: float, rng: np.random.Generator) -> np.ndarray:
    """Gaussian noise `snr_db` below the wave's level; a silent wave gets noise at -60 dB."""
    return add_sound(wave, rng.standard_normal(len(wave)).astype(np.float32), snr_db)


def mask_time(wave: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Silence in `share` of the time, in stretches that grow with the share."""
    starts = rng.uniform(0.0, 1.0, size=_STRETCHES)
    masked = wave.copy()
    for start in (np.arange(_STRETCHES) + starts * (1.0 - share)) / _STRETCHES:
        at = round(start * len(wave))
        masked[at : at + round(share / _STRETCHES * len(wave))] = 0.0
    return masked


def add_sound(wave: np.ndarray, other: np.ndarray, snr_db: float) -> np.ndarray:
    """The wave with another sound `snr_db` below it; alone if that is infinite."""
    other = fit_length(other, len(wave))
    level = rms(other)
    if level < SILENT or np.isinf(snr_db):
        return wave
    wanted = max(rms(wave), decibels(-60.0)) / decibels(snr_db)
    return np.asarray(wave + other * np.float32(wanted / level), dtype=np.float32)


def draw_study(
    path: Path,
    result: Mapping[str, Any],
    classifier: Classifier,
    example: ScoredClip,
    others: Sequence[ScoredClip],
    *,
    seconds: float = 5.0,
    seed: int = 0,
) -> None:
    """Draw a clip at every level of each disturbance, over the curves of FID and KL."""
    figure = new_figure(15, 5.5)
    axes = figure.subplots(2, 3, height_ratios=(1, 2.5))
    rate, front_end = classifier.config.mel.sample_rate, MelFrontEnd(classifier.config.mel)
    gap = np.full((80, 4, 3), 255, dtype=np.uint8)
    for column, (kind, amounts) in enumerate(LEVELS.items()):
        strip = []
        for amount in amounts:
            (clip,) = _disturbed([example], kind, amount, others, rate, seconds, seed)
            with torch.inference_mode():
                mel = front_end(torch.from_numpy(clip.wave(rate))[None])[0].numpy()
            strip += [np.asarray(spectrogram_image(mel, size=(120, 80))), gap]
        axes[0, column].imshow(np.concatenate(strip[:-1], axis=1), aspect="auto")
        axes[0, column].set_axis_off()
        axes[0, column].set_title(_TITLES[kind])
        points = [point for point in result["points"] if point["kind"] == kind]
        levels = [point["level"] for point in points]
        left = axes[1, column]
        right = left.twinx()
        left.plot(levels, [point["fid"] for point in points], "o-", color="tab:blue")
        right.plot(levels, [point["kl"] for point in points], "s--", color="tab:red")
        left.set_ylabel("FID", color="tab:blue")
        right.set_ylabel("KL", color="tab:red")
        left.set_xticks(levels, ["none" if not p["level"] else f"{p['amount']:g}" for p in points])
    figure.suptitle(f"{result['clips']} clips, classifier {result['classifier']}")
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=110)
