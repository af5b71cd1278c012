"""`make model`: the whole recipe at tiny scale, stopped in the middle and gone on with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import soundfile

from diffsound.cli.main import run as diffsound
from diffsound.generation.pipeline import TextToSound
from diffsound.model.bundle import verify
from make_model import HOURS, ROOT, SCALES, main, make_model, recipe

RATE = 22050


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    """Two classes of short sounds with names that say what they are."""
    folder = tmp_path / "recordings"
    rng = np.random.default_rng(0)
    rows = ["file,caption,labels,split"]
    for number in range(12):
        name, split = ("noise", "bell")[number % 2], "train" if number < 8 else "valid"
        time = np.arange(RATE // 2) / RATE
        tone = np.sin(2 * np.pi * (400 + 30 * number) * time)
        wave = (
            0.3 * np.exp(-4 * time) * (tone if name == "bell" else rng.standard_normal(len(time)))
        )
        path = folder / f"{name}-{number}.wav"
        path.parent.mkdir(exist_ok=True)
        soundfile.write(path, wave.clip(-1, 1), RATE)
        rows.append(f"{path.name},a {name},{name},{split}")
    (folder / "captions.csv").write_text("\n".join(rows) + "\n")
    return folder


def in_this_process(arguments: Sequence[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        diffsound(list(arguments))
    return int(ended.value.code or 0)


def test_the_whole_recipe_in_two_sittings(recordings: Path, tmp_path: Path) -> None:
    work, asked = tmp_path / "work", []

    def until_the_decoder(arguments: Sequence[str]) -> int:
        asked.append(arguments[:2])
        return 130 if arguments[1] == "decoder" else in_this_process(arguments)

    said: list[str] = []
    scale = SCALES["tiny"]
    assert make_model(recordings, work, scale, until_the_decoder, said.append) == 130
    assert "goes on from here" in said[-1]
    assert ("train", "ar") not in asked
    assert not (work / "bundle").exists()
    stamp = (work / "codec" / "export" / "model.safetensors").stat().st_mtime_ns

    assert make_model(recordings, work, scale, in_this_process, said.append) == 0
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
