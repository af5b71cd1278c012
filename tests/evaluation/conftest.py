"""A classifier small enough for tests, with random weights."""

from __future__ import annotations

import pytest
import torch

from diffsound.evaluation.classifier import Classifier, ClassifierConfig
from diffsound.evaluation.resnet import ResNetConfig
from metric_support import MEL


@pytest.fixture(scope="session")
def classifier() -> Classifier:
    backbone = ResNetConfig(
        stem=4, widths=(8, 16), depths=(1, 1), strides=((2, 2), (2, 2)), feature_dim=12
    )
    config = ClassifierConfig(mel=MEL, labels=("dog", "rain", "bell"), backbone=backbone)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = Classifier(config).eval()
        # Batch norms as after some training; a fresh one would make every block its shortcut.
        for module in made.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                torch.nn.init.uniform_(module.weight, 0.5, 1.5)
                torch.nn.init.normal_(module.bias, std=0.1)
    return made
