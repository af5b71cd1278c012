"""The codec stage end to end at tiny size, through a run folder."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import diffsound
from diffsound.audio.mel import MelConfig
from diffsound.codec.codec import Codec
from diffsound.codec.config import CodecConfig
from diffsound.codec.principal import principal_start
from diffsound.data.shards import PreparedData
from diffsound.errors import ConfigError, DataError, DiffsoundError, InputError
from diffsound.training import run_files
from diffsound.training.assemble import load_codec
from diffsound.training.codec import near_sound
from diffsound.training.run_files import plot_run, read_log
from diffsound.training.runs import run_lock, train
from diffsound.weights import load_export

CONFIGS = Path(__file__).parents[2] / "configs"
TINY = CONFIGS / "tiny" / "codec.yaml"
QUIET = ("train.log=none",)


def run_tiny(prepared: Path, run: Path, *overrides: str) -> str:
    return train("codec", TINY, prepared, run, [*QUIET, *overrides], quiet=True)


@pytest.fixture(scope="module")
def whole(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupted."""
    run = tmp_path_factory.mktemp("whole") / "run"
    assert run_tiny(prepared, run) == "finished"
    return run


def assert_same_state(one: Path, other: Path) -> None:
    first, second = run_files.load_newest(one), run_files.load_newest(other)
    assert first is not None
    assert second is not None
    for file, tensors in first.tensors.items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, second.tensors[file][name]), f"{file}: {name}"


def test_training_improves_and_exports_a_codec(whole: Path) -> None:
    log = read_log(whole)
    l1 = [entry["l1"] for entry in log if entry["kind"] == "train"]
    assert l1[-1] < 0.8 * l1[0]
    judged = [entry["step"] for entry in log if "judge_loss" in entry]
    assert judged == [8, 10, 12]  # from start_steps on
    kind, config, state = load_export(whole)
    assert kind == "codec"
    exported = whole / "export" / "model.safetensors"
    assert exported.stat().st_mode == (whole / "log.jsonl").stat().st_mode  # not a private file
    codec = Codec(CodecConfig.model_validate(config["codec"]))
    codec.load_state_dict(state)
    mel = MelConfig.model_validate(config["mel"])
    assert codec.encode(torch.rand(1, mel.n_mels, 9)).shape == (1, 4, 3)


def test_logs_contain_codebook_health(whole: Path) -> None:
    entries = read_log(whole)
    for entry in entries:
        assert 1 <= entry["perplexity"] <= 16
        assert 0 < entry["used"] <= 1
    assert entries[-1]["kind"] == "valid"
    assert next(e["restarts"] for e in entries if e["kind"] == "train") >= 64  # the first placing


def test_a_codec_can_start_from_one_with_more_rows_and_add_texture(
    prepared: Path, tmp_path: Path
) -> None:
    """Started from a larger codec, its tokens are the first rows of that codec's."""
    residual = ("codec.quantizer.layout=residual", "loss.adversarial=null", "train.max_steps=4")
    large, small = tmp_path / "large", tmp_path / "small"
    run_tiny(prepared, large, *residual)
    few = ("codec.quantizer.rows=2", f"init={large}", "freeze_tokens=true")
    few = (*few, "codec.texture={width: 8, layers: 1, hidden: 8}")
    run_tiny(prepared, small, *residual, *few)
    mel = torch.rand(2, 32, 16, generator=torch.Generator().manual_seed(0))
    tokens = [load_codec(run)[0].encode(mel) for run in (large, small)]
    assert tokens[1].shape == (2, 2, 4)
    assert torch.equal(tokens[0][:, :2], tokens[1])


PRINCIPAL = (
    "codec.quantizer={layout: residual, rows: 3, codebook_size: 16, code_dim: 6, update: ema}",
    "codec.backbone.latent=6",
    "principal=6",
    "loss.adversarial=null",
    "train.max_steps=4",
)


def test_a_codec_can_start_from_principal_components(prepared: Path, tmp_path: Path) -> None:
    """Its tokens are found before the first step, alike in every run, and frozen ones stay."""
    mel = torch.rand(2, 32, 16, generator=torch.Generator().manual_seed(0))
    tokens = []
    for name, steps in (("short", 1), ("long", 4)):
        run_tiny(
            prepared, tmp_path / name, *PRINCIPAL, "freeze_tokens=true", f"train.max_steps={steps}"
        )
        codec = load_codec(tmp_path / name)[0]
        tokens.append(codec.encode(mel))
    assert torch.equal(*tokens)
    run_tiny(prepared, tmp_path / "drawn", *PRINCIPAL, "principal=0")

    def first_l1(name: str) -> float:
        log = read_log(tmp_path / name)
        return float(next(entry["l1"] for entry in log if entry["kind"] == "valid"))

    assert first_l1("long") < 0.5 * first_l1("drawn")


def test_principal_components_can_span_several_epochs(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve clips are three batches of four; further ones are other windows of the same clips."""
    seen: list[torch.Tensor] = []

    def watched(codec: Codec, mels: torch.Tensor, *rest: Any) -> None:
        seen.append(mels)
        principal_start(codec, mels, *rest)

    monkeypatch.setattr("diffsound.training.codec.principal_start", watched)
    run_tiny(prepared, tmp_path / "run", *PRINCIPAL, "train.max_steps=1", "augment.gain_db=[-9, 0]")
    assert len(seen[0]) == 6 * 4
    assert len(seen[0].flatten(1).unique(dim=0)) == 6 * 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("freeze_tokens=true",), "init or principal"),
        (("principal=2", "init=RUN"), "not from both"),
        (("principal=2",), "linear"),
        ((*PRINCIPAL, "codec.quantizer.codebook_size=5000"), "too few"),
    ],
)
def test_contradictory_starts_are_refused(
    prepared: Path, tmp_path: Path, settings: tuple[str, ...], message: str
) -> None:
    with pytest.raises(DiffsoundError, match=message):
        run_tiny(prepared, tmp_path / "run", *settings)


def test_samples_show_originals_above_reconstructions(whole: Path) -> None:
    from PIL import Image

    with Image.open(whole / "samples" / "step-00000012" / "clip-0.png") as picture:
        assert picture.size == (860, 484)


def test_curves_can_be_plotted(whole: Path, tmp_path: Path) -> None:
    from PIL import Image

    with Image.open(plot_run(whole, tmp_path / "curves.png")) as picture:
        assert picture.width > 400


def test_a_finished_run_is_unchanged_by_a_rerun(prepared: Path, whole: Path) -> None:
    before = run_files.load_newest(whole)
    assert run_tiny(prepared, whole) == "finished"
    after = run_files.load_newest(whole)
    assert before is not None
    assert after is not None
    assert before.state["position"]["step"] == after.state["position"]["step"] == 12


def test_killed_at_any_point_and_resumed_gives_the_same_bits(
    prepared: Path, whole: Path, tmp_path: Path
) -> None:
    """kill -9, twice, at random moments."""
    run = tmp_path / "run"
    code = (
        "import sys; from diffsound.training.runs import train; "
        "train('codec', sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:], quiet=True)"
    )
    # Slow steps down by a checkpoint after each, so that kills land in writing too.
    command = [sys.executable, "-c", code, str(TINY), str(prepared), str(run)]
    command += [*QUIET, "train.checkpoint_steps=1"]
    source = str(Path(diffsound.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    for least in (2, 7):
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            if run.exists() and max(run_files.checkpoint_steps(run), default=0) >= least:
                break
            time.sleep(0.002)
        time.sleep(random.random() * 0.03)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert run_files.checkpoint_steps(run)
    run_tiny(prepared, run, "train.checkpoint_steps=1")
    assert_same_state(whole, run)


def test_a_damaged_newest_checkpoint_is_skipped(
    prepared: Path, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run_tiny(prepared, run)
    damaged = run / "step-00000012" / "weights.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    with pytest.warns(UserWarning, match="weights.safetensors is damaged"):
        run_tiny(prepared, run)
    assert_same_state(whole, run)


def test_changed_settings_are_named_and_nothing_is_written(prepared: Path, whole: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=r"train\.lr was 0\.02, now 0\.5"):
        run_tiny(prepared, whole, "train.lr=0.5")
    with pytest.raises(ConfigError, match=r"codec\.backbone\.latent was 24, now 16"):
        run_tiny(prepared, whole, "codec.backbone.latent=16")
    after = {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.is_file()}
    before.pop(whole / "run.lock")
    after.pop(whole / "run.lock")
    assert before == after


def test_other_data_is_refused(prepared: Path, whole: Path, tmp_path: Path) -> None:
    other = tmp_path / "data"
    shutil.copytree(prepared, other)
    index = other / "index.json"
    index.write_text(index.read_text().replace("synthetic", "elsewhere"))
    with pytest.raises(DataError, match="has another index"):
        run_tiny(other, whole)


def test_a_run_in_use_is_refused(prepared: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with run_lock(run), pytest.raises(InputError, match=f"in use by process {os.getpid()}"):
        run_tiny(prepared, run)
    assert [path.name for path in run.iterdir()] == ["run.lock"]


@pytest.mark.parametrize(
    ("override", "error", "message"),
    [
        ("stage=vocoder", ConfigError, "'stage'"),
        ("train.max_step=3", ConfigError, "did you mean 'max_steps'"),
        ("data.train_split=nowhere", DataError, "no clip with split 'nowhere'"),
        ("data.licences=[gpl]", DataError, "licences gpl"),
        ("mel.sample_rate=16000", DataError, "prepared at 8000 Hz"),
        ("train.batch_size=13", DataError, "smaller batch size"),
        ("mel.n_mels=40", ConfigError, "codec.n_mels is 32"),
    ],
)
def test_bad_settings_end_in_one_line(
    prepared: Path, tmp_path: Path, override: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        run_tiny(prepared, tmp_path / "run", override)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "run").glob("step-*"))


def test_texture_learns_by_likelihood_while_tokens_stay(prepared: Path, tmp_path: Path) -> None:
    run = tmp_path / "texture"
    config = CONFIGS / "tiny" / "texture.yaml"
    assert train("codec", config, prepared, run, [*QUIET], quiet=True) == "finished"
    log = read_log(run)
    nll = [entry["nll"] for entry in log if entry["kind"] == "valid"]
    assert nll[-1] < nll[0] - 0.1  # nats per cell of held-out clips
    _, exported, state = load_export(run)
    codec = Codec(CodecConfig.model_validate(exported["codec"])).eval()
    codec.load_state_dict(state)
    tokens = codec.encode(torch.rand(1, 32, 16))
    first, second = (codec.decode(tokens, torch.Generator().manual_seed(s)) for s in (1, 2))
    assert first.shape == second.shape == (1, 32, 16)
    assert not torch.equal(first, second)


def test_texture_learns_what_a_text_says_of_it(prepared: Path, tmp_path: Path) -> None:
    run, config = tmp_path / "told", CONFIGS / "tiny" / "texture.yaml"
    told = ["text_encoder={kind: minilm}", "augment.fill=silence", "codec.texture.memory=[4]"]
    assert train("codec", config, prepared, run, [*QUIET, *told], quiet=True) == "finished"
    _, exported, state = load_export(run)
    assert exported["codec"]["texture"]["text_dim"] == 384
    codec = Codec(CodecConfig.model_validate(exported["codec"])).eval()
    codec.load_state_dict(state)
    tokens = codec.encode(torch.rand(1, 32, 16))
    text = PreparedData.open(prepared).text().of(0).pooled[:1].float()
    first, second = (
        codec.decode(tokens, torch.Generator().manual_seed(1), given) for given in (text, None)
    )
    assert not torch.equal(first, second)


def test_a_chain_of_clips_has_no_single_text(prepared: Path, tmp_path: Path) -> None:
    config = CONFIGS / "tiny" / "texture.yaml"
    with pytest.raises(ConfigError, match="a chain of clips has no single text"):
        train("codec", config, prepared, tmp_path, ["text_encoder={kind: minilm}"], quiet=True)


def test_only_frames_near_sound_are_counted() -> None:
    mel = torch.zeros(1, 3, 12)
    mel[0, 1, 5] = 0.5
    assert near_sound(mel, 2).tolist() == [[0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0]]


def test_likelihood_without_texture_is_refused(prepared: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"loss.likelihood needs codec.texture"):
        run_tiny(prepared, tmp_path / "run", "loss.likelihood=1")
