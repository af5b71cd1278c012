"""The vocoder stage end to end at tiny size: on real mels, then on a codec's reconstructions."""

from __future__ import annotations

from pathlib import Path

import pytest
import soundfile
import torch

from diffsound.audio.mel import MelConfig
from diffsound.errors import BundleError, ConfigError
from diffsound.training.run_files import read_log
from diffsound.training.runs import train
from diffsound.vocoder import ISTFTConfig, build_vocoder
from diffsound.weights import load_export

TINY = Path(__file__).parents[2] / "configs" / "tiny"


def run_tiny(stage: str, prepared: Path, run: Path, *overrides: str) -> str:
    config = TINY / f"{stage}.yaml"
    return train(stage, config, prepared, run, ["train.log=none", *overrides], quiet=True)


@pytest.fixture(scope="module")
def vocoder(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("vocoder") / "run"
    assert run_tiny("vocoder", prepared, run) == "finished"
    return run


def test_training_improves_and_exports_a_vocoder(vocoder: Path) -> None:
    log = [entry for entry in read_log(vocoder) if entry["kind"] == "train"]
    assert log[-1]["spectral"] < log[0]["spectral"]
    assert ["judge_loss" in entry for entry in log] == [False] * 4 + [True] * 4
    kind, config, state = load_export(vocoder)
    assert kind == "vocoder"
    mel = MelConfig.model_validate(config["mel"])
    made = build_vocoder(ISTFTConfig.model_validate(config["vocoder"]), mel)
    made.load_state_dict(state)
    assert made(torch.rand(1, mel.n_mels, 9)).shape == (1, 9 * mel.hop_length)


def test_samples_hold_playable_sounds(vocoder: Path) -> None:
    folder = vocoder / "samples" / "step-00000008"
    for name in ("clip-0.wav", "clip-0-original.wav"):
        wave, rate = soundfile.read(folder / name)
        assert (len(wave), rate) == (64 * 64, 8000)
    assert (folder / "clip-0.png").exists()


def test_a_run_can_start_from_another_and_train_on_reconstructions(
    prepared: Path, vocoder: Path, tiny_codec: Path, tmp_path: Path
) -> None:
    """With a learning rate of 0 the weights stay those it started from."""
    run = tmp_path / "run"
    still = (
        "train.lr=1e-30",
        "train.ema_decay=null",
        "train.max_steps=1",
        "train.schedule=constant",
    )
    run_tiny("vocoder", prepared, run, f"init={vocoder}", f"codec={tiny_codec}", *still)
    _, _, before = load_export(vocoder)
    _, _, after = load_export(run)
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, rtol=0, atol=1e-12)
    first = next(entry for entry in read_log(run) if entry["kind"] == "train")
    trained = [entry for entry in read_log(vocoder) if entry["kind"] == "train"]
    # The codec has seen two steps: what it hands on is far from the mels the vocoder knows.
    assert first["mel"] > trained[-1]["mel"]


def test_a_codec_of_another_mel_is_refused(
    prepared: Path, tiny_codec: Path, tmp_path: Path
) -> None:
    with pytest.raises(BundleError, match="another mel"):
        run_tiny("vocoder", prepared, tmp_path / "run", f"codec={tiny_codec}", "mel.fmin=100")


def test_a_run_of_another_stage_is_refused(
    prepared: Path, tiny_codec: Path, vocoder: Path, tmp_path: Path
) -> None:
    with pytest.raises(BundleError, match="holds a codec, it cannot start a vocoder"):
        run_tiny("vocoder", prepared, tmp_path / "run", f"init={tiny_codec}")
    with pytest.raises(BundleError, match="holds a vocoder, not a codec"):
        run_tiny("vocoder", prepared, tmp_path / "run", f"codec={vocoder}")
    with pytest.raises(BundleError, match="holds no finished stage"):
        run_tiny("vocoder", prepared, tmp_path / "run", f"codec={tmp_path}")


def test_invalid_settings_are_refused(prepared: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="vocoder"):
        run_tiny("vocoder", prepared, tmp_path / "run", "vocoder={kind: griffin_lim}")
