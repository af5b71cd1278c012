"""Extraction: the same rows whatever the batch, each computed once, bad clips named."""

from __future__ import annotations

import sqlite3
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from diffsound.audio.io import write_audio
from diffsound.audio.mel import MelFrontEnd
from diffsound.data.shards import PreparedData
from diffsound.errors import AudioError, DataError, InputError
from diffsound.evaluation.features import (
    FeatureCache,
    ScoredClip,
    check_comparable,
    clips_of,
    clips_of_data,
    extract,
    wave_clip,
)
from diffsound.judges.classifier import Classifier
from metric_support import MEL, RATE, clip, sound


@pytest.fixture
def runs(classifier: Classifier) -> Iterator[list[int]]:
    """How many clips the classifier was given, call by call."""
    seen: list[int] = []
    hook = classifier.register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
    yield seen
    hook.remove()


def test_rows_are_the_classifiers_output(classifier: Classifier) -> None:
    waves = [clip(i, seconds=0.3 + 0.1 * (i % 3)) for i in range(11)]
    found = extract(classifier, waves, batch_size=3)
    assert found.ids == tuple(one.id for one in waves)
    assert found.features.shape == (11, 12)
    assert found.classifier == classifier.fingerprint
    with torch.inference_mode():
        for at, one in enumerate(waves):
            out = classifier(MelFrontEnd(MEL)(torch.from_numpy(one.wave(RATE))[None]))
            np.testing.assert_allclose(found.features[at], out.features[0], atol=1e-5)
            np.testing.assert_allclose(found.logits[at], out.logits[0], atol=1e-5)
            rms = float(np.sqrt(np.mean(one.wave(RATE).astype(np.float64) ** 2)))
            assert found.level[at] == pytest.approx(20 * np.log10(rms), abs=1e-3)
            assert found.seconds[at] == pytest.approx(len(one.wave(RATE)) / RATE)


def test_consecutive_clips_of_one_length_share_a_batch(
    classifier: Classifier, runs: list[int]
) -> None:
    extract(classifier, [clip(i, 0.3 if i < 6 else 0.4) for i in range(12)], batch_size=4)
    assert runs == [4, 2, 4, 2]


def test_seconds_makes_all_lengths_equal(classifier: Classifier, runs: list[int]) -> None:
    short, long = sound(1, 0.3), sound(2, 0.9)
    found = extract(
        classifier, [wave_clip("a", short, RATE), wave_clip("b", long, RATE)], seconds=0.5
    )
    padded = np.pad(short, (0, RATE // 2 - len(short)))
    cut = [wave_clip("a", padded, RATE), wave_clip("b", long[: RATE // 2], RATE)]
    same = extract(classifier, cut)
    np.testing.assert_array_equal(found.features, same.features)
    assert found.keys == same.keys
    assert runs == [2, 2]
    with pytest.raises(InputError, match="cut to 0 s"):
        extract(classifier, [clip(1)], seconds=0)


def test_a_click_is_padded_to_what_the_classifier_can_hear(classifier: Classifier) -> None:
    found = extract(classifier, [wave_clip("click", np.array([0.5], np.float32), RATE)])
    assert np.isfinite(found.features).all()
    assert found.seconds[0] == pytest.approx(1 / RATE)


def test_cached_clips_are_not_computed_twice(
    classifier: Classifier, runs: list[int], tmp_path: Path
) -> None:
    path = tmp_path / "deep" / "cache.sqlite"
    with FeatureCache(path) as cache:
        first = extract(classifier, [clip(i) for i in range(5)], cache=cache)
        assert sum(runs) == 5
    with FeatureCache(path) as cache:  # another day, other names, one more clip
        renamed = [wave_clip(f"again-{i}", sound(i), RATE) for i in (3, 1, 7)]
        again = extract(classifier, renamed, cache=cache)
        assert sum(runs) == 6
        np.testing.assert_array_equal(again.features[:2], first.features[[3, 1]])
        np.testing.assert_array_equal(again.sounds[:2], first.sounds[[3, 1]])
        np.testing.assert_array_equal(again.level[:2], first.level[[3, 1]])


def test_classifiers_do_not_share_cached_rows(classifier: Classifier, tmp_path: Path) -> None:
    other = Classifier(classifier.config).eval()
    other.load_state_dict(classifier.state_dict())
    other.head.weight.data *= 2
    with FeatureCache(tmp_path / "cache.sqlite") as cache:
        first = extract(classifier, [clip(1)], cache=cache)
        second = extract(other, [clip(1)], cache=cache)
    assert not np.allclose(first.logits, second.logits)
    with pytest.raises(InputError, match="different classifiers"):
        check_comparable(first, second)


def test_a_file_that_is_not_a_cache_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    path.write_bytes(b"this is not a database" * 100)
    with pytest.raises(DataError, match="delete it") as caught:
        FeatureCache(path)
    assert "\n" not in str(caught.value)
    assert path.read_bytes().startswith(b"this is not")


def test_a_row_of_another_size_is_computed_again(
    classifier: Classifier, runs: list[int], tmp_path: Path
) -> None:
    path = tmp_path / "cache.sqlite"
    with FeatureCache(path) as cache:
        extract(classifier, [clip(1)], cache=cache)
    with sqlite3.connect(path) as base:
        base.execute("UPDATE rows SET row = x'00'")
    with FeatureCache(path) as cache:
        found = extract(classifier, [clip(1)], cache=cache)
    assert runs == [1, 1]
    assert np.abs(found.features).max() > 0


def test_bad_clips_are_left_out_and_named(classifier: Classifier, tmp_path: Path) -> None:
    write_audio(tmp_path / "good.wav", sound(1), RATE)
    (tmp_path / "text.wav").write_text("no sound at all")
    nan = wave_clip("nan", np.array([0.0, np.nan], np.float32), RATE)
    empty = wave_clip("empty", np.zeros(0, np.float32), RATE)
    found = extract(classifier, [*clips_of(tmp_path, ["good", "text"]), nan, empty])
    assert found.ids == ("good",)
    assert set(found.failed) == {"text", "nan", "empty"}
    assert "NaN" in found.failed["nan"]
    assert "text.wav" in found.failed["text"]


def test_a_set_without_readable_clips_says_why(classifier: Classifier) -> None:
    good = extract(classifier, [clip(1)])
    bad = extract(classifier, [wave_clip("empty", np.zeros(0, np.float32), RATE)])
    assert len(bad) == 0
    with pytest.raises(InputError, match="no generated clips to score: it has no samples"):
        check_comparable(good, bad)


def test_sets_cut_to_different_lengths_are_not_compared(classifier: Classifier) -> None:
    with pytest.raises(InputError, match=r"0\.4 s, None s"):
        check_comparable(
            extract(classifier, [clip(1)], seconds=0.4), extract(classifier, [clip(1)])
        )


def test_two_clips_of_one_name_are_refused(classifier: Classifier) -> None:
    with pytest.raises(InputError, match="two clips are named 'clip-1'"):
        extract(classifier, [clip(1), clip(1)])


def test_clips_know_their_own_rate(sound_data: Path, tmp_path: Path) -> None:
    write_audio(tmp_path / "one.wav", np.repeat(sound(1), 2), 2 * RATE)
    (one,) = clips_of(tmp_path, ["one"])
    assert one.read()[1] == 2 * RATE
    assert len(one.wave(RATE)) == RATE // 2
    (prepared,) = clips_of_data(PreparedData.open(sound_data), [3])
    assert (prepared.id, prepared.read()[1]) == ("clip-03", RATE)
    assert len(prepared.wave(RATE)) == RATE // 2
    (tmp_path / "text.wav").write_text("no sound")
    with pytest.raises(AudioError, match=r"text\.wav"):
        clips_of(tmp_path, ["text"])[0].read()


def test_memory_does_not_grow_with_the_set(classifier: Classifier) -> None:
    def peak(count: int) -> int:
        clips = (wave_clip(str(i), np.full(4000, i / 4000, np.float32), RATE) for i in range(count))
        tracemalloc.start()
        extract(classifier, clips, batch_size=4)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(8)
    small, large = peak(40), peak(400)
    assert large - small < 400 * 4000 * 4 / 10  # a tenth of what the waves alone would take


def test_programming_errors_are_not_reported_as_bad_clips(classifier: Classifier) -> None:
    def broken(error: Exception) -> ScoredClip:
        def read() -> tuple[np.ndarray, int]:
            raise error

        return ScoredClip("broken", read)

    with pytest.raises(ZeroDivisionError):
        extract(classifier, [broken(ZeroDivisionError())])
    found = extract(classifier, [broken(AudioError("cannot read it"))])
    assert found.failed == {"broken": "cannot read it"}
