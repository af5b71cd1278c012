from __future__ import annotations

import csv
import doctest
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffsound.errors import InputError
from diffsound.text import mbtg
from diffsound.text.encoders import load_text_encoder
from diffsound.text.features import TextEncoderConfig
from diffsound.text.mbtg import clean_label, mask_based_text

LABELS = st.lists(
    st.sampled_from(["dog bark", "man speaking", "rain", "siren"]), min_size=1, max_size=6
)


def _rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_documented_examples() -> None:
    result = doctest.testmod(mbtg)
    assert result.attempted >= 8
    assert result.failed == 0


@given(LABELS, st.integers(0, 2**32))
def test_one_or_two_masks_on_either_side_of_each_label(labels: list[str], seed: int) -> None:
    text = mask_based_text(labels, _rng(seed))
    run = r"\[MASK\](?: \[MASK\])?"
    assert re.fullmatch(f"{run} " + f" {run} ".join(map(re.escape, labels)) + f" {run}", text)
    assert text == mask_based_text(labels, _rng(seed))


def test_the_papers_example_can_be_drawn() -> None:
    wanted = "[MASK] [MASK] dog bark [MASK] man speaking [MASK]"
    texts = Counter(mask_based_text(["dog bark", "man speaking"], _rng(s)) for s in range(400))
    assert wanted in texts
    # Three runs of one or two masks each: eight texts, all about equally often.
    assert len(texts) == 8
    assert min(texts.values()) > 25


def test_labels_are_given_shuffled_or_sorted() -> None:
    labels = ["siren", "rain", "bell"]

    def words(order: mbtg.Order, seed: int) -> tuple[str, ...]:
        text = mask_based_text(labels, _rng(seed), order=order)
        return tuple(word for word in text.split() if word != "[MASK]")

    assert {words("given", seed) for seed in range(50)} == {("siren", "rain", "bell")}
    assert {words("sorted", seed) for seed in range(50)} == {("bell", "rain", "siren")}
    assert len({words("shuffled", seed) for seed in range(200)}) == 6
    assert labels == ["siren", "rain", "bell"]


def test_synonyms_and_the_label_itself_are_drawn() -> None:
    synonyms = {"Bark": ["woof", "barking dog"]}
    texts = {mask_based_text(["Bark"], _rng(s), masks=(0,), synonyms=synonyms) for s in range(50)}
    assert texts == {"bark", "woof", "barking dog"}


def test_alternatives_are_dropped_or_kept() -> None:
    labels = ["Vehicle horn, car horn, honking", "Male speech, man speaking"]
    texts = [
        mask_based_text(labels, _rng(), masks=(1,), alternatives=kept) for kept in (False, True)
    ]
    assert texts == [
        "[MASK] vehicle horn [MASK] man speaking [MASK]",
        "[MASK] vehicle horn, car horn, honking [MASK] male speech, man speaking [MASK]",
    ]


@pytest.mark.parametrize("labels", [[], "dog", [" , "]])
def test_missing_and_empty_labels_are_refused(labels: list[str]) -> None:
    with pytest.raises(InputError, match="label"):
        mask_based_text(labels, _rng())


def test_invalid_options_are_refused() -> None:
    with pytest.raises(InputError, match="numbers of masks"):
        mask_based_text(["dog"], _rng(), masks=())
    with pytest.raises(InputError, match="order is"):
        mask_based_text(["dog"], _rng(), order="random")  # type: ignore[arg-type]


def test_audioset_labels_stay_distinct() -> None:
    """Each of the 527 display names keeps a text of its own (list: AudioSet, Google, CC BY 4.0)."""
    path = Path(__file__).parent / "golden" / "audioset_display_names.csv"
    with path.open(encoding="utf-8", newline="") as stream:
        names = [row["display_name"] for row in csv.DictReader(stream)]
    cleaned = [clean_label(name) for name in names]
    assert len(names) == len(set(cleaned)) == 527
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9 '&.-]*", label) for label in cleaned)


@pytest.mark.parametrize("kind", ["minilm", "clip", "bert"])
def test_every_encoder_reads_masked_text(kind: str, bert_folder: Path, clip_folder: Path) -> None:
    folder = clip_folder if kind == "clip" else bert_folder
    encoder = load_text_encoder(
        TextEncoderConfig.model_validate({"kind": kind, "name": str(folder)})
    )
    features = encoder([mask_based_text(["dog", "man speaking"], _rng(), masks=(2,))])
    # start, 2 masks, dog, 2 masks, man, speaking, 2 masks, end: a mask is one token everywhere
    assert int(features.mask.sum()) == 11
