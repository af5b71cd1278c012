"""Choosing among candidates with a captioner that hears one thing: how loud a sound is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import spice_stub
from diffsound.audio.mel import MelConfig, MelFrontEnd
from diffsound.errors import InputError
from diffsound.evaluation import spice
from diffsound.evaluation.captions import CaptionRanker, CiderD
from diffsound.evaluation.spice import scene_graph_score
from diffsound.judges.captioner import Captioner, CaptionerConfig, WordsConfig
from diffsound.judges.captioner_encoder import PatchConfig
from diffsound.judges.ranking import LikelihoodRanker, best

RATE = 8000
MEL = MelConfig(n_fft=256, hop_length=64, n_mels=16, fmin=0.0, fmax=4000.0, sample_rate=RATE)
CORPUS = [["a loud noise"], ["a quiet noise"], ["a dog barks"]]


@dataclass(frozen=True)
class Noise:
    """A sound as a ranker needs it."""

    wave: np.ndarray
    sample_rate: int = RATE


def noise(level: float, seconds: float = 0.3, rate: int = RATE) -> Noise:
    rng = np.random.default_rng(5)
    wave = level * rng.standard_normal(int(seconds * rate))
    return Noise(wave.astype(np.float32), rate)


LEVELS = (0.003, 0.2, 0.02, 0.0005)
SOUNDS = [noise(level) for level in LEVELS]


@pytest.fixture(scope="module")
def captioner() -> Captioner:
    """Trained in a moment to say "a loud noise" or "a quiet noise"."""
    torch.manual_seed(0)
    config = CaptionerConfig(
        n_mels=16,
        encoder=PatchConfig(frames=4, width=16, layers=1, heads=2),
        words=WordsConfig(width=16, layers=1, heads=2, longest=6),
        dropout=0.0,
    )
    made = Captioner(config, ["a", "noise", "loud", "quiet"], MEL)
    waves = torch.stack([torch.from_numpy(noise(level).wave) for level in LEVELS])
    mel = MelFrontEnd(MEL)(waves)
    texts = [f"a {'loud' if level > 0.01 else 'quiet'} noise" for level in LEVELS]
    numbers = made.tokenizer.batch(texts, 6)
    optimizer = torch.optim.Adam(made.parameters(), 1e-2)
    deaf = torch.zeros(4, dtype=torch.bool)
    for step in range(80):
        logits = made(mel, numbers[:, :-1], deaf | (step % 4 == 0))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), numbers[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return made.eval().requires_grad_(False)


def test_the_likeliest_sounds_are_kept(captioner: Captioner) -> None:
    ranker = LikelihoodRanker(captioner, batch_size=3)
    loud, quiet = (ranker.score(f"a {word} noise", SOUNDS) for word in ("loud", "quiet"))
    assert set(best(loud, 2)) == {1, 2}
    assert set(best(quiet, 2)) == {0, 3}


def test_scores_are_the_captioners_likelihoods(captioner: Captioner) -> None:
    mel = MelFrontEnd(MEL)(torch.from_numpy(SOUNDS[0].wave)[None])
    expected = captioner.log_likelihood(mel, ["a quiet noise"])
    found = LikelihoodRanker(captioner).score("A quiet noise!", SOUNDS[:1])
    assert found == pytest.approx(expected.tolist(), abs=1e-6)


def test_ranking_by_captions_agrees(captioner: Captioner) -> None:
    ranker = CaptionRanker(captioner, CORPUS)
    assert ranker.captions(SOUNDS) == [
        "a quiet noise",
        "a loud noise",
        "a loud noise",
        "a quiet noise",
    ]
    scores = ranker.score("a loud noise", SOUNDS)
    assert best(scores, 2) == [1, 2]  # equal ones stay in order
    assert scores[1] > 5 > scores[0]


def test_the_papers_score_is_the_sum_of_both_terms(captioner: Captioner) -> None:
    prompt = "a loud noise while a dog barks"
    ranker = CaptionRanker(captioner, CORPUS)
    said = ranker.captions(SOUNDS)
    meant = [scene_graph_score(caption, [prompt]) for caption in said]
    fluent = [CiderD([d[0]] for d in CORPUS).score(caption, [prompt]) for caption in said]
    assert len(set(meant)) == len(set(fluent)) == 2
    expected = [a + b for a, b in zip(meant, fluent, strict=True)]
    assert ranker.score(prompt, SOUNDS) == pytest.approx(expected, abs=1e-9)


@pytest.mark.skipif(spice_stub.JAVAC is None, reason="a SPICE is compiled: needs a JDK")
def test_the_ranker_says_which_score_it_used(captioner: Captioner, tmp_path: Path) -> None:
    prompt = "a loud noise while a dog barks"
    plain = CaptionRanker(captioner, CORPUS)
    assert plain.name == "scene graph + CIDEr"
    folder = spice_stub.build(tmp_path / "spice")
    ranker = CaptionRanker(captioner, CORPUS, corenlp=folder)
    assert ranker.name == "SPICE + CIDEr"
    said = ranker.captions(SOUNDS)
    cider = CiderD([d[0]] for d in CORPUS)
    expected = [spice_stub.score(c, [prompt]) + cider.score(c, [prompt]) for c in said]
    assert ranker.score(prompt, SOUNDS) == pytest.approx(expected)


def test_spice_without_java_is_refused_not_replaced(
    captioner: Captioner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in spice.JARS:
        (tmp_path / name).touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="SPICE needs Java"):
        CaptionRanker(captioner, CORPUS, corenlp=tmp_path)


def test_other_rates_are_resampled(captioner: Captioner) -> None:
    ranker = LikelihoodRanker(captioner)
    sounds = [noise(0.2, rate=16000), noise(0.0005, rate=16000)]
    assert best(ranker.score("a quiet noise", sounds), 1) == [1]


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1), st.data())
def test_best_is_the_head_of_the_sorted_scores(scores: list[float], data: st.DataObject) -> None:
    keep = data.draw(st.integers(1, len(scores)))
    found = best(scores, keep)
    assert len(set(found)) == keep
    numbers = sorted((s for s in scores if not math.isnan(s)), reverse=True)
    assert [scores[i] for i in found][: len(numbers)] == numbers[:keep]


@pytest.mark.parametrize("keep", [0, 3])
def test_keeping_none_or_too_many_is_refused(keep: int) -> None:
    with pytest.raises(InputError, match=f"cannot keep {keep} of 2"):
        best([0.1, 0.2], keep)
