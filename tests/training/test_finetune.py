"""Fine-tuning: from a folder of sounds and a bundle to a new bundle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from diffsound.bundle import Bundle
from diffsound.cli.main import run as diffsound
from diffsound.data.sources import SourceReport, open_source
from diffsound.decoder.build import build_decoder
from diffsound.decoder.config import DiffsoundConfig
from diffsound.errors import DataError, InputError
from diffsound.text.features import TextFeatures
from diffsound.training.finetune import HeldOut, finetune, rungs
from diffsound.training.logs import read_log
from diffsound.training.lora import LoraConfig, add_lora, merged_state

RATE = 22050


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


def test_makes_a_new_bundle_from_a_folder_of_sounds(
    sounds: Path, knowing: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, origin = tmp_path / "mine", knowing.save_pretrained(tmp_path / "origin")
    typed = ["finetune", str(origin), "--data", str(sounds), "--out", str(out)]
    with pytest.raises(SystemExit) as ended:
        diffsound([*typed, "--minutes", "0.03"])
    assert ended.value.code == 0
    said = capsys.readouterr()
    assert said.out.strip() == str(out)
    assert "10 sounds, 1 of them kept to check by" in said.err
    before, after = Bundle.from_pretrained(origin), Bundle.from_pretrained(out)
    assert after.config.name == "mine"
    assert after.config.decoder == before.config.decoder
    assert "## Fine-tuned" in after.card
    assert after.coverage is not None
    assert {"a dog barks", "bell"} < set(after.coverage.captions)
    for name, tensor in before.codec.state_dict().items():
        torch.testing.assert_close(after.codec.state_dict()[name], tensor, rtol=2e-3, atol=1e-4)
    log = read_log(tmp_path / "mine-work" / "run")
    assert (log[0]["kind"], log[0]["step"]) == ("valid", 0)
    # Every dense layer of the blocks may have moved, nothing else (float16 rounding aside).
    new, old = after.decoder.state_dict(), before.decoder.state_dict()
    for name, tensor in old.items():
        if "blocks" not in name or not name.endswith(".weight"):
            torch.testing.assert_close(new[name], tensor, rtol=2e-3, atol=1e-4)
    with pytest.raises(SystemExit) as ended:
        diffsound(typed)
    assert ended.value.code == 2
    assert "already holds a bundle" in capsys.readouterr().err


def test_what_only_gets_worse_is_not_handed_on(
    sounds: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    """A learning rate that destroys the model leaves the bundle as it was."""
    out = tmp_path / "mine"
    result = finetune(tiny_folder, sounds, out, minutes=0.02, method="full", lr=30.0, quiet=True)
    assert (result.improved, result.steps) == (False, 0)
    old, new = (Bundle.from_pretrained(folder).decoder for folder in (tiny_folder, out))
    for name, tensor in old.state_dict().items():
        torch.testing.assert_close(new.state_dict()[name], tensor, rtol=2e-3, atol=1e-4)


def test_too_few_sounds_are_refused(tiny_folder: Path, tmp_path: Path) -> None:
    few = write_sounds(tmp_path / "few", ["a bell", "a gong"])
    with pytest.raises(DataError, match="2 usable sounds"):
        finetune(tiny_folder, few, tmp_path / "out", quiet=True)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "config.json").write_text("{}")
    with pytest.raises(InputError, match="already holds a bundle"):
        finetune(tiny_folder, few, tmp_path / "there", quiet=True)


def splits(folder: Path) -> dict[str, str]:
    source = HeldOut(open_source(str(folder)))
    return {record.id: record.split for record in source.records(SourceReport())}


def test_takes_of_one_thing_stay_on_one_side(tmp_path: Path) -> None:
    names = [f"{thing}_{take}" for thing in ("bell", "gong", "pipe", "can") for take in range(3)]
    found = splits(write_sounds(tmp_path / "takes", names))
    sides = {thing: {found[f"{thing}_{take}"] for take in range(3)} for thing in ("bell", "pipe")}
    assert all(len(side) == 1 for side in sides.values())
    assert sorted(found.values()).count("valid") == 3


def test_takes_are_divided_when_there_is_but_one_thing(tmp_path: Path) -> None:
    found = splits(write_sounds(tmp_path / "one", [f"bell_{take:02d}" for take in range(16)]))
    assert [name for name, split in found.items() if split == "valid"] == ["bell_07", "bell_15"]


def test_every_rung_fills_a_batch() -> None:
    assert rungs([10] * 8 + [50] * 8, 8) == (12, 54)
    assert rungs([10] * 3 + [50] * 8, 8) == (54,)  # the three short ones go with the others
    assert rungs([10] * 8 + [200] * 3, 8) == (12,)  # the three long ones are cut
    assert rungs([300] * 8, 8) == (216,)


def test_low_rank_updates_start_at_nothing_and_merge_exactly() -> None:
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
