"""Every number the paper states stands in configs/paper, and what it leaves open is decided once.

A number that changes in a config must be changed here too, with the paper in hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

CONFIGS = Path(__file__).parents[2] / "configs"


def value(path: str) -> Any:
    """`file:group.key` of configs/."""
    name, keys = path.split(":")
    found = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text(encoding="utf-8"))
    for key in keys.split("."):
        found = found[key]
    return found


@pytest.mark.parametrize(
    ("path", "stated"),
    [
        # V-C
        ("paper/codec:mel.sample_rate", 22050),
        ("paper/codec:mel.n_fft", 1024),
        ("paper/codec:mel.hop_length", 256),
        ("paper/codec:mel.n_mels", 80),
        # VII-A-1, VQ-VAE
        ("paper/codec:train.batch_size", 20),
        ("paper/codec:train.lr", 1e-6),
        ("paper/codec:train.lr_per_clip", True),
        ("paper/codec:train.schedule", "constant"),
        ("paper/codec:train.max_minutes", 9 * 24 * 60),
        ("paper/codec:codec.quantizer.codebook_size", 256),
        ("paper/codec:codec.quantizer.code_dim", 256),
        ("paper/codec:codec.quantizer.codebook_weight", 1.0),
        ("paper/codec:codec.quantizer.commitment_weight", 1.0),
        ("paper/codec:loss.l1", 1.0),
        ("paper/codec:loss.adversarial.start_epochs", 2),
        ("paper/codec:loss.adversarial.weight", 0.8),
        ("paper/codec:loss.adversarial.kind", "log"),
        ("paper/codec:loss.adversarial.adaptive", False),
        # VII-A-2, autoregressive decoder
        ("paper/ar:train.batch_size", 16),
        ("paper/ar:train.lr", 1e-6),
        ("paper/ar:train.lr_per_clip", True),
        ("paper/ar:train.patience", 2),
        ("paper/ar:train.validate_epochs", 1),
        ("paper/ar:valid_clips", 0),
        # VII-A-3, Diffsound
        ("paper/diffsound:train.batch_size", 16),
        ("paper/diffsound:train.max_epochs", 400),
        ("paper/diffsound:train.betas", [0.9, 0.94]),
        ("paper/diffsound:decoder.timesteps", 100),
        ("paper/diffsound:decoder.schedule.kind", "linear"),
        ("paper/diffsound:decoder.schedule.transition", "mask_uniform"),
        ("paper/diffsound:decoder.schedule.gamma_end", 0.9),
        ("paper/diffsound:decoder.loss.variant", "vlb"),
        ("paper/diffsound:decoder.loss.auxiliary", 1e-4),
        ("paper/diffsound:text_dropout", 0.0),
        ("paper/pretrain:train.batch_size", 16),
        ("paper/pretrain:train.betas", [0.9, 0.94]),
        ("paper/pretrain:data.subset", 0.45),
        ("paper/pretrain:labels.masks", [1, 2]),
        ("paper/pretrain:curriculum.schedule", "paper"),
        # VII-A-4, vocoder
        ("paper/vocoder:train.batch_size", 256),
        ("paper/vocoder:train.max_epochs", 200),
        ("paper/vocoder:frames", 8192 // 256),
        ("paper/vocoder:data.subset", 0.4),
        # VI-B, classifier and captioner
        ("paper/classifier:train.batch_size", 64),
        ("paper/classifier:train.lr", 3e-3),
        ("paper/classifier:train.weight_decay", 1e-3),
        ("paper/captioner:frames", 860),
    ],
)
def test_paper_configs_have_the_numbers_that_the_paper_states(path: str, stated: Any) -> None:
    assert value(path) == stated


@pytest.mark.parametrize(
    ("path", "chosen"),
    [
        ("paper/diffsound:train.lr", 4.5e-4),
        ("paper/diffsound:train.warmup_steps", 1000),
        ("paper/diffsound:train.clip", 0.5),
        ("paper/pretrain:train.lr", 4.5e-4),
        ("paper/pretrain:train.warmup_steps", 1000),
        ("paper/pretrain:train.clip", 0.5),
        ("paper/ar:train.betas", [0.9, 0.95]),
        ("paper/codec:train.betas", [0.5, 0.9]),
        ("paper/vocoder:train.lr", 1e-4),
        ("paper/vocoder:train.betas", [0.5, 0.9]),
        ("paper/vocoder:loss.adversarial.feature_matching", 10.0),
        ("official/diffsound:train.betas", [0.9, 0.96]),
        ("official/diffsound:train.batch_size", 20),
        ("official/diffsound:train.lr", 4.5e-4),
        ("official/diffsound:train.weight_decay", 4.5e-2),
        ("official/diffsound:decoder.loss.auxiliary", 5e-4),
        ("official/diffsound:decoder.loss.adaptive", True),
        ("official/diffsound:decoder.loss.importance", True),
        ("official/codec:loss.adversarial.start_steps", 60000),
        ("official/vocoder:train.lr", 5e-5),
    ],
)
def test_unstated_numbers_come_from_the_published_code_or_its_sources(
    path: str, chosen: Any
) -> None:
    assert value(path) == chosen


def test_pre_training_is_the_whole_of_algorithm_3() -> None:
    assert value("paper/pretrain:train.max_epochs") == 3 * value("paper/pretrain:curriculum.n")
    assert value("paper/pretrain:train.max_epochs") == pytest.approx(200, abs=1)
