"""`make model`: the whole recipe at tiny scale, stopped in the middle and resumed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from cli_support import typed
from diffsound.generation.pipeline import TextToSound
from diffsound.model.checks import verify
from make_model import HOURS, ROOT, SCALES, main, make_model, recipe

RATE = 22050


@pytest.fixture
def recordings(record: Callable[[int, str, str], Path]) -> Path:
    """Two classes of short sounds with names that say what they are."""
    row = "{name}-{number}.wav,a {name},{name},{split}"
    return record(12, "file,caption,labels,split", row)


def test_the_whole_recipe_in_two_sittings(recordings: Path, tmp_path: Path) -> None:
    work, asked = tmp_path / "work", []

    def until_the_decoder(arguments: Sequence[str]) -> int:
        asked.append(arguments[:2])
        return 130 if arguments[1] == "decoder" else typed(*arguments)

    said: list[str] = []
    scale = SCALES["tiny"]
    assert make_model(recordings, work, scale, until_the_decoder, said.append) == 130
    assert "goes on from here" in said[-1]
    assert ("train", "ar") not in asked
    assert not (work / "bundle").exists()
    stamp = (work / "codec" / "export" / "model.safetensors").stat().st_mtime_ns

    assert make_model(recordings, work, scale, lambda words: typed(*words), said.append) == 0
    assert (work / "codec" / "export" / "model.safetensors").stat().st_mtime_ns == stamp
    for name in ("bundle", "bundle-ar"):
        assert verify(work / name) == []
        sound = TextToSound.from_pretrained(work / name)("a bell", duration=0.5, seed=1)[0]
        assert sound.coverage is not None
        assert sound.coverage["nearest"][0]["caption"] == "a bell"
        assert {"captioner", "classifier"} < {path.name for path in (work / name).iterdir()}


def test_the_plan_knows_every_step(recordings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = list(recipe(recordings, Path("work"), SCALES["small"]))
    assert [step.name for step in steps] == list(HOURS)
    assert main([str(recordings), "--plan"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].split() == ["in", "all", f"{sum(HOURS.values()):.1f}", "h"]
    # The bundled model is made of the small configs alone.
    for step in steps:
        if step.command[0] == "train":
            config = Path(step.command[step.command.index("--config") + 1])
            assert config.parent.name == "small"
            assert config.exists()


def test_the_docs_tell_the_same_hours() -> None:
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:4] for line in text.splitlines() if line.startswith("| ")]
    told = {name.strip(): hours.strip() for name, _, hours in rows if name.strip() in HOURS}
    assert told == {name: f"{hours:.1f}" for name, hours in HOURS.items()}


def test_prepared_data_are_not_prepared_again(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text("{}")
    steps = list(recipe(tmp_path, tmp_path / "work", SCALES["small"]))
    assert "prepare" not in {step.name for step in steps}
    assert str(tmp_path) in steps[0].command


def test_recordings_that_are_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["nowhere"])
    assert ended.value.code == 2
    assert "there is nothing at nowhere" in capsys.readouterr().err
