"""The matcher: its loss against the obvious form, and choosing the best of several draws by it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import diffsound
from cli_support import diffsound as command_line
from diffsound.audio.mel import MelConfig, MelFrontEnd
from diffsound.errors import BundleError, InputError
from diffsound.evaluation.captions import ClipSound
from diffsound.generation.jobs import take_seed
from diffsound.generation.pipeline import TextToSound
from diffsound.judges.classifier import load_classifier
from diffsound.judges.ranking import (
    Matcher,
    MatcherConfig,
    MatcherRanker,
    best_takes,
    load_matcher,
    matching_loss,
)
from diffsound.judges.resnet import ResNetConfig
from diffsound.model.bundle import Bundle
from diffsound.model.checks import describe, verify
from diffsound.weights import write_export
from support import bundle_with_rows_in_turn, with_defaults

BACKBONE = ResNetConfig(
    stem=4, widths=(8, 12), depths=(1, 1), strides=((2, 2), (2, 2)), feature_dim=12, dropout=0.0
)


def make_matcher(bundle: Bundle, **changes: object) -> Matcher:
    facts = {
        "mel": bundle.config.codec.mel,
        "backbone": BACKBONE,
        "text_dim": bundle.text_encoder.dim,
        "text_fingerprint": bundle.text_encoder.fingerprint,
        "dim": 8,
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Matcher(MatcherConfig.model_validate(facts | changes)).eval()


def write_run(matcher: Matcher, run: Path) -> Path:
    run.mkdir(exist_ok=True)
    config = matcher.config.model_dump(mode="json")
    write_export(run, "matcher", config, matcher.state_dict(), step=1, metrics={"error": 0.5})
    return run


@pytest.fixture(scope="module")
def choosy(tiny_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny bundle with a matcher of random weights; read only."""
    folder = tmp_path_factory.mktemp("choosy")
    run = write_run(make_matcher(tiny_bundle), folder)
    return replace(tiny_bundle, judges={"matcher": run}).save_pretrained(folder / "bundle")


@pytest.fixture(scope="module")
def pipeline(choosy: Path) -> TextToSound:
    return diffsound.load(choosy)


def test_loss_is_the_mean_over_truths_in_both_directions() -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, 4, dtype=torch.float64)
    same = torch.tensor([[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 1]], dtype=torch.bool)
    slow = 0.0
    for matrix, truth in ((logits, same), (logits.T, same.T)):
        for row, right in zip(matrix, truth, strict=True):
            chances = row.exp() / row.exp().sum()
            slow -= float(chances[right].log().mean()) / 4 / 2
    assert float(matching_loss(logits, same)) == pytest.approx(slow, rel=1e-5)


def test_further_texts_are_negatives_and_unclear_ones_do_not_count() -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 5, dtype=torch.float64)
    same = torch.eye(3, 5, dtype=torch.bool)
    same[0, 4] = True
    unclear = torch.zeros(3, 5, dtype=torch.bool)
    unclear[1, 3] = True
    slow = 0.0
    for row, right, left_out in zip(logits, same, unclear, strict=True):
        chances = row.exp() / row.exp()[~left_out].sum()
        slow -= float(chances[right].log().mean()) / 3 / 2
    for column, right in zip(logits.T[:3], same.T[:3], strict=True):  # the others have no sound
        chances = column.exp() / column.exp().sum()
        slow -= float(chances[right].log().mean()) / 3 / 2
    assert float(matching_loss(logits, same, unclear)) == pytest.approx(slow, rel=1e-5)


def test_vectors_have_unit_length_and_any_length_of_mel_is_heard(tiny_bundle: Bundle) -> None:
    matcher = make_matcher(tiny_bundle)
    bands = tiny_bundle.config.codec.mel.n_mels
    for frames in (16, 33, 200):
        heard = matcher.hear(torch.rand(3, bands, frames))
        torch.testing.assert_close(heard.norm(dim=1), torch.ones(3))
    text = tiny_bundle.text_encoder(["a dog", "rain"]).pooled
    cosines = matcher.similarity(torch.rand(3, bands, 40), text)
    assert cosines.shape == (3, 2)
    assert cosines.abs().max() <= 1 + 1e-6
    with pytest.raises(InputError, match="the matcher takes mels"):
        matcher.hear(torch.rand(1, bands, 8))


def test_best_of_is_the_best_of_its_takes(pipeline: TextToSound, choosy: Path) -> None:
    (sound,) = pipeline("a loud dog", duration=1, seed=5, best_of=4)
    takes = [pipeline("a loud dog", duration=1, seed=take_seed(5, take))[0] for take in range(4)]
    matcher = load_matcher(choosy / "matcher")
    text = pipeline.bundle.text_encoder(["a loud dog"]).pooled
    fits = [float(matcher.similarity(torch.from_numpy(t.mel)[None], text)) for t in takes]
    best = takes[max(range(4), key=fits.__getitem__)]
    assert len({round(fit, 6) for fit in fits}) > 1  # there was something to choose
    assert (sound.tokens == best.tokens).all()
    assert (sound.wave == best.wave).all()
    assert sound.score == pytest.approx(max(fits), abs=1e-5)
    assert sound.seed == 5
    assert sound.settings["best_of"] == 4


def test_a_silent_take_loses_to_any_other() -> None:
    fits = [0.9, 0.1, 0.2, 0.3, 0.8, 0.5, 0.1, 0.4, 0.2]
    mels = torch.full((9, 4, 5), 0.1)
    mels[1:3, 2, 3] = 0.6  # the first text's best fit is silent
    mels[3:6, 0, 0] = 0.5  # nothing of the second's is; all of the third's are
    assert best_takes(fits, mels, takes=3).tolist() == [2, 4, 7]


def test_the_choice_does_not_depend_on_the_batch(pipeline: TextToSound) -> None:
    prompts = ["a dog", "rain falls", "a bell"]
    together = pipeline(prompts, duration=1, num_candidates=2, seed=3, best_of=3)
    alone = [
        pipeline(prompt, duration=1, seed=3 + candidate, best_of=3)[0]
        for prompt in prompts
        for candidate in range(2)
    ]
    for a, b in zip(together, alone, strict=True):
        assert (a.wave == b.wave).all()
        assert a.score == b.score


@pytest.fixture(scope="module")
def early(tmp_path_factory: pytest.TempPathFactory) -> TextToSound:
    """A bundle that draws coarse rows first, with a matcher, which chooses on the way."""
    bundle = with_defaults(bundle_with_rows_in_turn(), num_inference_steps=8, chosen_after=0.5)
    run = write_run(make_matcher(bundle), tmp_path_factory.mktemp("early"))
    return TextToSound(replace(bundle, judges={"matcher": run}))


def test_the_best_take_is_chosen_before_the_last_step(early: TextToSound) -> None:
    assert early.chooses_early
    (sound,) = early("a loud dog", duration=1, seed=5, best_of=4)
    takes = [early("a loud dog", duration=1, seed=take_seed(5, take))[0] for take in range(4)]
    text = early.encode_text(["a loud dog"])
    rows = sum(np.cumsum((5, 4, 3, 2)) <= 7)  # of 14 shares
    sketches = torch.cat(
        [early.sketch(torch.from_numpy(take.tokens)[None, :rows]) for take in takes]
    )
    assert early.matcher is not None
    fits = early.matcher.fit(text.repeat(4), sketches)
    best = takes[max(range(4), key=fits.__getitem__)]
    assert len({round(fit, 6) for fit in fits}) > 1  # there was something to choose
    assert (sound.tokens == best.tokens).all()
    # The score is the finished sound's.
    (final,) = early.matcher.fit(text, torch.from_numpy(best.mel)[None])
    assert sound.score == pytest.approx(final, abs=1e-5)
    assert sound.settings["chosen_after"] == 0.5


def test_an_early_choice_does_not_depend_on_the_batch(early: TextToSound) -> None:
    prompts = ["a dog", "rain falls on a roof of tin"]
    shares: list[float] = []
    together = early(
        prompts, duration=1, num_candidates=2, seed=3, best_of=3,
        callback=lambda share, tokens: shares.append(share),
    )  # fmt: skip
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    for number, sound in enumerate(together):
        prompt, candidate = prompts[number // 2], number % 2
        (alone,) = early(prompt, duration=1, seed=3 + candidate, best_of=3)
        assert (sound.wave == alone.wave).all()
        assert sound.score == alone.score


def test_without_early_choice_finished_takes_are_compared(pipeline: TextToSound) -> None:
    assert not pipeline.chooses_early
    (early,) = pipeline("a dog", duration=1, seed=2, best_of=3, chosen_after=0.3)
    (late,) = pipeline("a dog", duration=1, seed=2, best_of=3)
    assert (early.wave == late.wave).all()
    with pytest.raises(InputError, match="chosen_after must be a number from 0 to 1"):
        pipeline("a dog", chosen_after=-0.1)


def test_the_first_take_is_the_sounds_own() -> None:
    assert take_seed(7, 0) == 7
    seeds = {take_seed(seed, take) for seed in range(20) for take in range(20)}
    assert len(seeds) == 400
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_the_bundles_default_counts_and_progress_covers_all_takes(choosy: Path) -> None:
    bundle = Bundle.from_pretrained(choosy)
    defaults = bundle.config.defaults.model_copy(update={"best_of": 3})
    bundle = replace(bundle, config=bundle.config.model_copy(update={"defaults": defaults}))
    pipeline = TextToSound(bundle)
    shares: list[float] = []
    (sound,) = pipeline(
        "a dog", duration=1, seed=2, callback=lambda share, tokens: shares.append(share)
    )
    assert sound.settings["best_of"] == 3
    assert sound.score is not None
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    assert len(shares) % 3 == 0
    (plain,) = pipeline("a dog", duration=1, seed=2, best_of=1)
    assert plain.score is None
    # An edit is drawn once: what fits its surroundings is not the matcher's to say.
    assert pipeline.vary(sound, "a dog", seed=1)[0].settings["best_of"] == 1


def test_keep_chooses_by_the_matcher(pipeline: TextToSound) -> None:
    everything = pipeline("a dog", duration=1, num_candidates=4, seed=1)
    kept = pipeline("a dog", duration=1, num_candidates=4, keep=2, seed=1)
    assert pipeline.matcher is not None
    scores = pipeline.matcher.score("a dog", everything)
    order = sorted(range(4), key=lambda i: -scores[i])[:2]
    assert [sound.seed for sound in kept] == [everything[i].seed for i in order]


@pytest.mark.parametrize("best_of", [0, -1, 101, 1.5, True, "2"])
def test_best_of_is_a_whole_number_from_1_to_100(pipeline: TextToSound, best_of: object) -> None:
    with pytest.raises(InputError, match="best_of must be a whole number from 1 to 100"):
        pipeline("a dog", best_of=best_of)


def test_sounds_are_ranked_by_their_waves_too(pipeline: TextToSound, choosy: Path) -> None:
    matcher, encoder = load_matcher(choosy / "matcher"), pipeline.bundle.text_encoder
    sounds = pipeline("a dog", duration=1, num_candidates=3, seed=1)
    ranker = MatcherRanker(matcher, encoder)
    front_end = MelFrontEnd(matcher.config.mel)
    text = encoder(["rain falls"]).pooled
    heard = [ClipSound(sound.wave, sound.sample_rate) for sound in sounds]
    for sound, score in zip(heard, ranker.score("rain falls", heard), strict=True):
        mel = front_end(torch.from_numpy(sound.wave)[None])
        assert score == pytest.approx(float(matcher.similarity(mel, text)), abs=1e-5)
    stranger = Matcher(matcher.config.model_copy(update={"text_fingerprint": "another"}))
    with pytest.raises(InputError, match="another text encoder"):
        MatcherRanker(stranger, encoder)


def test_without_a_matcher_it_is_refused(tiny_folder: Path) -> None:
    with pytest.raises(InputError, match="needs a matcher, and 'tiny' has none"):
        diffsound.load(tiny_folder)("a dog", best_of=2)


def test_a_matcher_of_other_stages_is_refused(tiny_bundle: Bundle, tmp_path: Path) -> None:
    other_mel = MelConfig(n_mels=tiny_bundle.config.codec.mel.n_mels)
    for name, changes, message in (
        ("mel", {"mel": other_mel}, "another mel"),
        ("text", {"text_fingerprint": "somebody-else"}, "another text encoder"),
    ):
        run = write_run(make_matcher(tiny_bundle, **changes), tmp_path / name)
        pipeline = TextToSound(replace(tiny_bundle, judges={"matcher": run}))
        with pytest.raises(BundleError, match=message):
            pipeline("a dog", duration=1, best_of=2)


def test_it_travels_with_the_bundle(choosy: Path, tiny_folder: Path) -> None:
    assert verify(choosy) == []
    assert describe(choosy)["matcher"]["error"] == 0.5
    with pytest.raises(BundleError, match="holds a matcher, not a classifier"):
        load_classifier(choosy / "matcher")


def test_the_command_line_draws_and_says_so(choosy: Path, tmp_path: Path) -> None:
    options = ["--bundle", str(choosy), "--best-of", "3", "--seed", "5", "--duration", "1"]
    done = command_line("a loud dog", *options, "-o", "dog.wav", "--json", "-q", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "dog.wav").exists()
    assert '"best_of": 3' in done.stdout
