"""Fine-tuning: from a folder of sounds and a bundle to a new bundle."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st

from cli_support import typed
from diffsound.data.clip import PrepareSettings
from diffsound.data.record import AudioLocation, Record
from diffsound.data.sources import SourceReport, open_source
from diffsound.decoder import build_decoder
from diffsound.decoder.config import DiffsoundConfig
from diffsound.errors import DataError, InputError
from diffsound.model.bundle import Bundle
from diffsound.text.features import TextFeatures
from diffsound.training.decoder import LoraConfig, add_lora, merged_state
from diffsound.training.finetune import HeldOut, finetune, held_out_takes, own_sounds, rungs
from diffsound.training.run_files import read_log

RATE = 22050
LEARNED = "bell"  # the first of the captions below


def write_sounds(folder: Path, names: list[str]) -> Path:
    folder.mkdir()
    for number, name in enumerate(names):
        rng = np.random.default_rng(number)
        time = np.arange(RATE // 3) / RATE
        tone = np.sin(2 * np.pi * (300 + 100 * number) * time)
        wave = 0.3 * np.exp(-4 * time) * (tone + 0.1 * rng.standard_normal(len(time)))
        soundfile.write(folder / f"{name}.wav", wave, RATE)
    return folder


@pytest.fixture(scope="module")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    things = ["bell", "gong", "chime", "glass", "bowl", "triangle", "cymbal", "pipe", "can", "pan"]
    return write_sounds(tmp_path_factory.mktemp("own") / "sounds", things)


def test_finetuning_makes_a_new_bundle_from_a_folder_of_sounds(
    sounds: Path, knowing: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, origin = tmp_path / "mine", knowing.save_pretrained(tmp_path / "origin")
    command = ("finetune", origin, "--data", sounds, "--out", out)
    assert typed(*command, "--minutes", 0.06) == 0
    said = capsys.readouterr()
    assert said.out.strip() == str(out)
    assert "10 sounds, 1 of them held out" in said.err
    work = tmp_path / "mine-work"
    *_, loss, compare, next_line = said.err.strip().splitlines()
    assert re.search(r"held-out loss .*perplexity down", loss)
    assert compare == f'compare: {work / "before.wav"} and {work / "after.wav"} ("{LEARNED}")'
    assert next_line == f"try: diffsound {LEARNED} -b {out}"
    waves = [soundfile.read(work / f"{name}.wav")[0] for name in ("before", "after")]
    assert waves[0].shape == waves[1].shape
    assert not np.array_equal(*waves)
    before, after = Bundle.from_pretrained(origin), Bundle.from_pretrained(out)
    assert after.config.name == "mine"
    assert after.config.decoder == before.config.decoder
    assert after.card.startswith("# mine\n")
    assert re.findall(r"^# .*", after.card, flags=re.M) == ["# mine"]
    assert re.findall(r"^## .*", after.card, flags=re.M) == [
        "## Data", "## Scores", "## Fine-tuned from `tiny`",
    ]  # fmt: skip
    assert "9 recordings" in after.card
    assert f"- {LEARNED} (1)" in after.card
    assert "| loss after |" in after.card
    assert "### tiny\n\nRandom weights" in after.card  # the origin's own card, one level down
    assert after.coverage is not None
    assert {"a dog barks", "bell"} < set(after.coverage.captions)
    for name, tensor in before.codec.state_dict().items():
        torch.testing.assert_close(after.codec.state_dict()[name], tensor, rtol=2e-3, atol=1e-4)
    log = read_log(work / "run")
    assert (log[0]["kind"], log[0]["step"]) == ("valid", 0)
    # Every dense layer of the blocks may have moved, nothing else (float16 rounding aside).
    new, old = after.decoder.state_dict(), before.decoder.state_dict()
    for name, tensor in old.items():
        if "blocks" not in name or not name.endswith(".weight"):
            torch.testing.assert_close(new[name], tensor, rtol=2e-3, atol=1e-4)
    assert typed(*command) == 2
    assert "already holds a bundle" in capsys.readouterr().err


def test_a_model_that_only_gets_worse_is_left_unchanged(
    sounds: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    """A learning rate that destroys the model leaves the bundle as it was."""
    out = tmp_path / "mine"
    result = finetune(tiny_folder, sounds, out, minutes=0.02, method="full", lr=30.0, quiet=True)
    assert (result.improved, result.steps, result.pair) == (False, 0, None)
    old, new = (Bundle.from_pretrained(folder).decoder for folder in (tiny_folder, out))
    for name, tensor in old.state_dict().items():
        torch.testing.assert_close(new.state_dict()[name], tensor, rtol=2e-3, atol=1e-4)


def test_too_few_sounds_are_refused(tiny_folder: Path, tmp_path: Path) -> None:
    few = write_sounds(tmp_path / "few", ["a bell", "a gong"])
    with pytest.raises(DataError, match="2 usable sounds, at least 4 are needed"):
        finetune(tiny_folder, few, tmp_path / "out", quiet=True)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "config.json").write_text("{}")
    with pytest.raises(InputError, match="already holds a bundle"):
        finetune(tiny_folder, few, tmp_path / "there", quiet=True)


def splits(folder: Path) -> dict[str, str]:
    """The split of every usable sound of a folder."""
    settings = PrepareSettings(max_seconds=10.0)
    report = SourceReport()
    records = HeldOut(open_source(str(folder)), settings).records(report)
    return {record.id: record.split for record in records}


def test_takes_are_held_out_within_names_so_that_every_name_is_learned(tmp_path: Path) -> None:
    things = ("bell", "can", "gong", "pipe")
    names = [f"{thing}_{take}" for thing in things for take in range(5)]
    found = splits(write_sounds(tmp_path / "takes", names))
    held = [name for name, split in found.items() if split == "valid"]
    assert held == ["bell_4", "can_4"]
    for thing in things:
        assert [found[f"{thing}_{take}"] for take in range(4)] == ["train"] * 4


def test_takes_of_a_single_name_are_divided(tmp_path: Path) -> None:
    found = splits(write_sounds(tmp_path / "one", [f"bell_{take:02d}" for take in range(16)]))
    assert [name for name, split in found.items() if split == "valid"] == ["bell_14", "bell_15"]


def test_every_eighth_name_is_held_out_if_each_has_a_single_take(sounds: Path) -> None:
    held = [name for name, split in splits(sounds).items() if split == "valid"]
    assert held == [sorted(path.stem for path in sounds.iterdir())[7]]


@given(st.lists(st.integers(1, 12), min_size=1, max_size=8).filter(lambda sizes: sum(sizes) >= 4))
def test_any_folder_has_sounds_to_learn_from_and_to_check_by(sizes: list[int]) -> None:
    records = [
        Record(id=f"{name}-{take}", audio=AudioLocation(""), group=str(name))
        for name, takes in enumerate(sizes)
        for take in range(takes)
    ]
    held = held_out_takes(records)
    assert 1 <= len(held) <= max(1, len(records) // 8)
    if max(sizes) > 1:
        assert {record.group for record in records if record.id not in held} == {
            str(name) for name in range(len(sizes))
        }


def test_silent_and_broken_files_are_named_and_never_held_out(
    tiny_folder: Path, tmp_path: Path
) -> None:
    names = [f"{thing}_{take}" for thing in ("bell", "can") for take in range(5)]
    folder = write_sounds(tmp_path / "takes", names)
    # The takes that would be held out if all were well.
    soundfile.write(folder / "bell_4.wav", np.zeros(RATE), RATE)
    (folder / "can_4.wav").write_bytes(b"RIFF, but not for long")
    config = Bundle.from_pretrained(tiny_folder).config
    data = own_sounds(folder, tmp_path / "data", config)
    assert len(data) == 8
    assert {clip.id for clip in data.index.rejected} == {"bell_4", "can_4"}
    assert [data.records[i].id for i in data.where(split="valid")] == ["bell_3"]


def test_a_folder_keeps_its_own_splits_only_while_they_are_usable(tmp_path: Path) -> None:
    folder = write_sounds(tmp_path / "takes", [f"bell_{take}" for take in range(5)])
    rows = [f"bell_{take}.wav,a bell,{'valid' if take == 0 else 'train'}" for take in range(5)]
    (folder / "captions.csv").write_text("\n".join(["file,caption,split", *rows]) + "\n")
    assert splits(folder)["bell_0"] == "valid"
    (folder / "bell_0.wav").write_bytes(b"broken")
    found = splits(folder)
    assert [name for name, split in found.items() if split == "valid"] == ["bell_4"]


def test_every_rung_fills_whole_batches() -> None:
    assert rungs([10] * 8 + [50] * 8, 8) == (12, 54)
    assert rungs([10] * 3 + [50] * 8, 8) == (54,)  # the three short ones go with the others
    assert rungs([10] * 8 + [200] * 3, 8) == (12,)  # the three long ones are cut
    assert rungs([300] * 8, 8) == (216,)


def test_low_rank_updates_start_at_zero_and_merge_exactly() -> None:
    torch.manual_seed(0)
    decoder = build_decoder(DiffsoundConfig.tiny())
    text = TextFeatures(torch.randn(2, 3, 16), torch.ones(2, 3).bool(), torch.randn(2, 16))
    tokens, t = torch.randint(8, (2, 2, 5)), torch.tensor([3, 7])
    names = set(decoder.state_dict())
    before = decoder(tokens, t, text)
    add_lora(decoder, decoder.transformer.blocks, LoraConfig(rank=2))
    torch.testing.assert_close(decoder(tokens, t, text), before)
    learning = [name for name, p in decoder.named_parameters() if p.requires_grad]
    assert learning
    assert all("blocks" in name and name.endswith((".up", ".down")) for name in learning)
    for name, parameter in decoder.named_parameters():
        if name.endswith(".up"):
            torch.nn.init.normal_(parameter)
    after = decoder(tokens, t, text)
    assert not torch.allclose(after, before)
    state = merged_state(decoder)
    assert set(state) == names
    plain = build_decoder(DiffsoundConfig.tiny())
    plain.load_state_dict(state)
    torch.testing.assert_close(plain(tokens, t, text), after, rtol=1e-4, atol=1e-5)
