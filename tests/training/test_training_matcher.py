"""The matcher stage end to end at tiny size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from diffsound.config import load_config
from diffsound.data.shards import PreparedData
from diffsound.errors import ConfigError
from diffsound.judges.ranking import load_matcher
from diffsound.text.encoders import load_text_encoder
from diffsound.text.features import TextEncoderConfig
from diffsound.training.assemble import load_codec
from diffsound.training.matcher import MatcherRun, MatcherStage, TextPool, _equal
from diffsound.training.run_files import read_log
from diffsound.training.runs import train
from diffsound.training.stage import Process

TINY = Path(__file__).parents[2] / "configs" / "tiny"


@pytest.fixture(scope="module")
def ears(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A codec that has learned enough to tell a tone from noise."""
    run = tmp_path_factory.mktemp("codec") / "run"
    settings = ["train.log=none", "train.max_steps=60"]
    train("codec", TINY / "codec.yaml", prepared, run, settings, quiet=True)
    return run


@pytest.fixture(scope="module")
def residual(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A codec whose rows are stages of one description."""
    run = tmp_path_factory.mktemp("residual") / "run"
    settings = [
        "train.log=none", "train.max_steps=60",
        "codec.quantizer={layout: residual, rows: 3, codebook_size: 16, code_dim: 8}",
    ]  # fmt: skip
    train("codec", TINY / "codec.yaml", prepared, run, settings, quiet=True)
    return run


@pytest.fixture(scope="module")
def trained(prepared: Path, ears: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("matcher") / "run"
    settings = ["train.log=none", f"codec={ears}", "train.max_steps=60"]
    ending = train("matcher", TINY / "matcher.yaml", prepared, run, settings, quiet=True)
    assert ending == "finished"
    return run


def test_training_matches_texts_to_sounds(trained: Path, prepared: Path, ears: Path) -> None:
    last = [row for row in read_log(trained) if row["kind"] == "valid"][-1]
    assert last["error"] == 0.0
    assert last["pairs"] == 1.0
    matcher = load_matcher(trained)
    encoder = load_text_encoder(TextEncoderConfig(kind="minilm"))
    assert matcher.config.text_fingerprint == encoder.fingerprint
    codec, mel, fingerprint = load_codec(ears)
    assert matcher.config.mel == mel
    texts = encoder(["a tone", "a noise"]).pooled
    data = PreparedData.open(prepared)
    for clip in data.where(split="valid"):
        grid = torch.from_numpy(data.tokens(fingerprint).of(clip)[0].astype("int64"))
        heard = matcher.similarity(codec.decode(grid[None]).clamp(0, 1), texts)[0]
        assert ["tone", "noise"][int(heard.argmax())] == data.records[clip].labels[0]


def test_clips_of_one_class_are_not_wrong_answers(prepared: Path, ears: Path) -> None:
    config = load_config(MatcherRun, TINY / "matcher.yaml", [f"codec={ears}"])
    data = PreparedData.open(prepared)
    stage = MatcherStage(config.completed(data), data, Process())
    batch = next(stage.loader.batches(0))
    names = [stage.classes[key] for key in batch["id"]]
    same = _equal(names, [*names, "other"])
    for i, one in enumerate(names):
        for j, other in enumerate([*names, "other"]):
            assert bool(same[i, j]) == (one == other)
    assert not torch.equal(stage.matcher.mean, torch.full_like(stage.matcher.mean, 0.5))


def test_sketches_and_further_texts_are_used(
    prepared: Path, residual: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    settings = [
        "train.log=none", f"codec={residual}", "train.max_steps=60",
        "sketches={share: 0.5, rows: [1, 2]}", "further_texts=12",
    ]  # fmt: skip
    assert train("matcher", TINY / "matcher.yaml", prepared, run, settings, quiet=True)
    last = [row for row in read_log(run) if row["kind"] == "valid"][-1]
    assert last["pairs"] == last["pairs_1"] == last["pairs_2"] == 1.0
    config = load_config(MatcherRun, run / "config.yaml")
    data = PreparedData.open(prepared)
    stage = MatcherStage(config, data, Process())
    generator = torch.Generator().manual_seed(0)
    drawn = [stage._rows(generator) for _ in range(200)]
    assert set(drawn) == {None, 1, 2}
    batch = next(stage.loader.batches(0))
    rough = stage._mels(batch, 1)
    assert rough.shape == stage._mels(batch).shape
    assert torch.equal(rough, stage.codec.sketch(batch["tokens"][:, :1]).clamp(0, 1))


def test_texts_are_drawn_class_by_class(prepared: Path, ears: Path) -> None:
    config = load_config(MatcherRun, TINY / "matcher.yaml", [f"codec={ears}", "further_texts=9"])
    data = PreparedData.open(prepared)
    stage = MatcherStage(config.completed(data), data, Process())
    assert isinstance(stage.texts, TextPool)
    pooled, names = stage.texts.draw(400, torch.Generator().manual_seed(0))
    assert pooled.shape == (400, stage.config.text_dim)
    assert set(names) == set(stage.texts.names)
    for name in stage.texts.names:  # each class alike, however many clips it has
        assert abs(names.count(name) / 400 - 1 / len(stage.texts.names)) < 0.1
    known = torch.cat(stage.texts.texts)
    assert all(bool((known == text).all(1).any()) for text in pooled)


def test_texts_close_to_the_own_one_are_ignored(prepared: Path, ears: Path) -> None:
    config = load_config(MatcherRun, TINY / "matcher.yaml", [f"codec={ears}", "further_texts=2"])
    data = PreparedData.open(prepared)
    stage = MatcherStage(config.completed(data), data, Process())
    own = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    further = torch.tensor([[2.0, 0.1], [1.0, 1.0]])  # nearly the first one's; between both
    unclear = stage._unclear(torch.cat([own, further]), 2)
    assert unclear is not None
    assert unclear.tolist() == [[False, False, True, False], [False, False, False, False]]


def test_sketches_need_residual_tokens(prepared: Path, ears: Path) -> None:
    data = PreparedData.open(prepared)
    settings = [f"codec={ears}", "sketches={share: 0.5, rows: [1]}"]
    config = load_config(MatcherRun, TINY / "matcher.yaml", settings).completed(data)
    with pytest.raises(ConfigError, match="residual tokens"):
        MatcherStage(config, data, Process())


def test_a_matcher_without_a_codec_is_refused() -> None:
    with pytest.raises(ConfigError, match="a matcher needs a codec"):
        load_config(MatcherRun, TINY / "matcher.yaml")
