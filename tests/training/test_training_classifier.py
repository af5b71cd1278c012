"""The classifier stage end to end at tiny size, and its augmentation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from diffsound.config import load_config
from diffsound.data.shards import PreparedData
from diffsound.errors import DataError
from diffsound.evaluation.features import clips_of_data, extract
from diffsound.judges.classifier import load_classifier
from diffsound.training.judges import ClassifierRun, ClassifierStage, band_statistics
from diffsound.training.run_files import read_log
from diffsound.training.runs import train
from diffsound.training.stage import MaskConfig, MixConfig, Moment, Process, mask_mels, mix_waves

CONFIGS = Path(__file__).parents[2] / "configs"
TINY = CONFIGS / "tiny" / "classifier.yaml"


def run_tiny(prepared: Path, run: Path, *overrides: str) -> str:
    return train("classifier", TINY, prepared, run, ["train.log=none", *overrides], quiet=True)


def tiny_stage(prepared: Path, *overrides: str) -> ClassifierStage:
    config = load_config(ClassifierRun, TINY, overrides)
    return ClassifierStage(config, PreparedData.open(prepared), Process())


@pytest.fixture(scope="module")
def trained(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("classifier") / "run"
    assert run_tiny(prepared, run, "train.max_steps=40", "train.validate_steps=40") == "finished"
    return run


def test_the_classifier_tells_held_out_tones_from_noises(trained: Path, prepared: Path) -> None:
    last = read_log(trained)[-1]
    assert last["kind"] == "valid"
    assert last["top1"] == 1.0
    assert last["error"] == 0.0
    classifier = load_classifier(trained)
    assert classifier.config.labels == ("noise", "tone")
    data = PreparedData.open(prepared)
    held_out = data.where(split="valid")
    found = extract(classifier, clips_of_data(data, held_out))
    heard = [classifier.config.labels[at] for at in found.logits.argmax(1)]
    assert heard == [data.records[i].labels[0] for i in held_out]


def test_prepared_clips_are_heard_at_the_classifiers_rate(prepared: Path) -> None:
    data = PreparedData.open(prepared)
    (clip,) = clips_of_data(data, [3])
    assert clip.id == data.records[3].id
    assert len(clip.wave(4000)) == pytest.approx(len(data.wave(3)) / 2, abs=1)


def test_mels_are_standardised_by_the_training_clips(prepared: Path) -> None:
    stage = tiny_stage(prepared)
    data = PreparedData.open(prepared)
    clips = data.where(split="train")
    mels = torch.cat(
        [stage.front_end(torch.from_numpy(data.wave(i))[None])[0] for i in clips], dim=1
    )
    mean, std = band_statistics(data, clips, stage.front_end)
    torch.testing.assert_close(mean, mels.mean(1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(std, mels.std(1, unbiased=False), rtol=1e-3, atol=1e-4)
    assert torch.equal(stage.classifier.mean, mean)


def test_clips_may_have_several_labels(prepared: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_tiny(prepared, run, "multi_label=true", "train.max_steps=4", "train.validate_steps=4")
    last = read_log(run)[-1]
    assert 0 <= last["average_precision"] <= 1
    assert last["error"] == pytest.approx(1 - last["average_precision"])
    assert load_classifier(run).config.multi_label


def test_melception_is_trained(prepared: Path) -> None:
    stage = tiny_stage(prepared, "backbone={kind: melception}", "train.batch_size=2")
    stage.attach({"classifier": stage.classifier}, torch.device("cpu"))
    batch = next(stage.loader.batches(0))
    (turn,) = stage.turns(batch, Moment(0, 0, torch.Generator().manual_seed(0)))
    turn.loss.backward()
    assert stage.classifier.head.weight.grad is not None


def test_the_paper_preset_has_the_papers_numbers() -> None:
    config = load_config(ClassifierRun, CONFIGS / "paper" / "classifier.yaml")
    assert config.multi_label
    assert (config.frames - 1) * config.mel.hop_length == pytest.approx(220_500, rel=2e-3)
    assert (config.train.lr, config.train.weight_decay, config.train.batch_size) == (3e-3, 1e-3, 64)
    small = load_config(ClassifierRun, CONFIGS / "small" / "classifier.yaml")
    assert small.sources == ("esc50",)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sources=[elsewhere]", "no clip with split .train. of elsewhere"),
        ("labels=[tone]", "6 training clips with one of 1 labels"),
        ("labels=[cat, dog]", "0 training clips with one of 2 labels"),
        ("mel.sample_rate=16000", "prepared at 8000 Hz"),
    ],
)
def test_a_single_label_is_refused(
    prepared: Path, tmp_path: Path, override: str, message: str
) -> None:
    with pytest.raises(DataError, match=message) as caught:
        run_tiny(prepared, tmp_path / "run", override)
    assert "\n" not in str(caught.value)


def test_masks_are_no_wider_than_configured() -> None:
    how = MaskConfig(bands=5, band_masks=1, frames=7, frame_masks=1)
    mel = torch.ones(300, 20, 30)
    masked = mask_mels(mel, how, torch.Generator().manual_seed(0), fill=0.25)
    assert set(masked.unique().tolist()) == {0.25, 1.0}
    bands = (masked == 0.25).all(dim=2).sum(dim=1)
    frames = (masked == 0.25).all(dim=1).sum(dim=1)
    assert bands.max() == 5
    assert frames.max() == 7
    assert bands.float().mean() == pytest.approx(2.5, abs=0.3)
    again = mask_mels(mel, how, torch.Generator().manual_seed(0), fill=0.25)
    assert torch.equal(masked, again)


def test_without_masks_mels_are_unchanged() -> None:
    mel = torch.rand(2, 8, 9)
    none = MaskConfig(band_masks=0, frame_masks=0)
    assert torch.equal(mask_mels(mel, none, torch.Generator()), mel)


def test_mixed_waves_have_the_levels_of_their_targets() -> None:
    """With levels 100 to 1, the amplitudes must be 1 to 100 to be heard as half and half."""
    generator = torch.Generator().manual_seed(1)
    wave = torch.stack([torch.ones(64), 0.01 * torch.tensor([1.0, -1.0]).repeat(32)])
    target = torch.eye(2)
    for _ in range(20):
        mixed, soft = mix_waves(wave, target, MixConfig(probability=1.0), generator)
        torch.testing.assert_close(soft.sum(1), torch.ones(2))
        loud = mixed.mean(1)  # the first wave's amplitude, as the second has no mean
        quiet = (mixed - loud[:, None]).abs().mean(1)
        torch.testing.assert_close(loud / (loud + quiet), soft[:, 0], rtol=1e-3, atol=1e-4)


def test_unmixed_waves_are_unchanged() -> None:
    wave, target = torch.randn(4, 32), torch.eye(4)
    mixed, soft = mix_waves(wave, target, MixConfig(probability=0.0), torch.Generator())
    torch.testing.assert_close(mixed, wave)
    assert torch.equal(soft, target)
    silent, _ = mix_waves(torch.zeros(4, 32), target, MixConfig(probability=1.0), torch.Generator())
    assert torch.equal(silent, torch.zeros(4, 32))
