"""The classifiers: shapes, size, what they refuse, and the way to disk and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from diffsound.config import parse_config
from diffsound.errors import BundleError, ConfigError, InputError
from diffsound.judges.classifier import (
    Classifier,
    ClassifierConfig,
    MelceptionConfig,
    average_precision,
    load_classifier,
    top_k_accuracy,
)
from diffsound.judges.resnet import ResNetConfig
from diffsound.weights import cast, write_export


def parameters(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.fixture(scope="module")
def melception() -> Classifier:
    config = ClassifierConfig(labels=("a", "b", "c"), backbone=MelceptionConfig())
    return Classifier(config).eval()


def test_melception_has_inception_v3s_size(melception: Classifier) -> None:
    """Published: 23 834 568 parameters without the side head, for 1000 classes and 3 channels."""
    body = 23_834_568 - (2048 * 1000 + 1000) - 2 * 32 * 9
    assert parameters(melception.backbone) == body
    assert parameters(melception.head) == 2049 * 3


@pytest.mark.parametrize("frames", [16, 23, 61])
def test_melception_takes_any_length(melception: Classifier, frames: int) -> None:
    with torch.inference_mode():
        mel = torch.rand(1, 80, frames)
        out = melception(mel)
    assert out.features.shape == (1, 2048)
    assert out.logits.shape == (1, 3)


def test_melception_keeps_resolution_without_the_max_pools(melception: Classifier) -> None:
    """Three halvings are left: 80 bands and 123 frames become 8 and 13."""
    assert isinstance(melception.backbone, torch.nn.Module)
    with torch.inference_mode():
        net = melception.backbone
        middle = net.middle(net.fine(net.stem(torch.rand(1, 1, 80, 123))))
        last = net.coarse(middle)
    assert middle.shape[1:] == (768, 17, 28)
    assert last.shape[1:] == (2048, 8, 13)


def test_the_resnet_has_two_to_four_million_parameters_and_256_features() -> None:
    classifier = Classifier(ClassifierConfig(labels=tuple(f"label {i}" for i in range(50))))
    assert 2e6 < parameters(classifier) < 4e6
    assert classifier.feature_dim == 256
    with torch.inference_mode():
        assert classifier.eval()(torch.rand(2, 80, 16)).features.shape == (2, 256)


def test_standardisation_makes_level_and_spread_of_bands_irrelevant(classifier: Classifier) -> None:
    mel = torch.rand(2, 32, 40)
    shift, scale = torch.rand(32), 0.5 + torch.rand(32)
    moved = Classifier(classifier.config).eval()
    moved.load_state_dict(classifier.state_dict())
    moved.standardise_by(classifier.mean * scale + shift, classifier.std * scale)
    with torch.inference_mode():
        torch.testing.assert_close(
            moved(mel * scale[:, None] + shift[:, None]).logits,
            classifier(mel).logits,
            rtol=1e-4,
            atol=1e-4,
        )


def test_a_constant_band_stays_finite(classifier: Classifier) -> None:
    made = Classifier(classifier.config)
    made.standardise_by(torch.zeros(32), torch.zeros(32))
    assert made.std.min() == pytest.approx(1e-3)


@pytest.mark.parametrize("shape", [(1, 32, 15), (1, 31, 40), (32, 40)])
def test_other_shapes_are_refused(classifier: Classifier, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"mels \[B, 32, at least 16 frames\]"):
        classifier(torch.rand(shape))


def test_a_classifier_survives_a_round_trip(classifier: Classifier, tmp_path: Path) -> None:
    config = classifier.config.model_dump(mode="json")
    write_export(tmp_path, "classifier", config, classifier.state_dict(), step=1, metrics={})
    loaded = load_classifier(tmp_path)
    assert loaded.config == classifier.config
    assert loaded.fingerprint == classifier.fingerprint
    assert not loaded.training
    mel = torch.rand(1, 32, 20)
    assert torch.equal(loaded(mel).logits, classifier(mel).logits)


def test_half_precision_keeps_the_fingerprint_and_nearly_the_logits(
    classifier: Classifier, tmp_path: Path
) -> None:
    config = classifier.config.model_dump(mode="json")
    state = cast(classifier.state_dict(), torch.float16)
    write_export(tmp_path, "classifier", config, state, step=1, metrics={})
    halved = load_classifier(tmp_path)
    assert halved.fingerprint == classifier.fingerprint
    mel = torch.rand(1, 32, 20)
    torch.testing.assert_close(halved(mel).logits, classifier(mel).logits, rtol=0.02, atol=0.02)


def test_different_weights_have_different_fingerprints(classifier: Classifier) -> None:
    other = Classifier(classifier.config)
    other.load_state_dict(classifier.state_dict())
    other.mean += 0.1
    assert other.fingerprint != classifier.fingerprint


def test_another_stages_export_is_refused(classifier: Classifier, tmp_path: Path) -> None:
    write_export(tmp_path, "codec", {}, classifier.state_dict(), step=1, metrics={})
    with pytest.raises(BundleError, match="holds a codec, not a classifier"):
        load_classifier(tmp_path)


def test_weights_that_do_not_fit_are_named(classifier: Classifier, tmp_path: Path) -> None:
    config = json.loads(classifier.config.model_dump_json())
    config["labels"].append("cat")
    write_export(tmp_path, "classifier", config, classifier.state_dict(), step=1, metrics={})
    with pytest.raises(BundleError, match=r"'head\.weight' has the shape \(3, 12\)"):
        load_classifier(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": ["one"]}, "labels"),
        ({"labels": ["one", "one"]}, "named twice"),
        ({"backbone": {"kind": "resnet", "widths": [8]}}, "one entry for each level"),
    ],
)
def test_contradictory_configs_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(ClassifierConfig, {"labels": ["a", "b"], **change})


def test_top_k_counts_clips_whose_label_is_among_the_likeliest() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0], [2.0, 3.0, 1.0]])
    labels = torch.tensor([0, 1, 2])
    assert top_k_accuracy(logits, labels, 1) == pytest.approx(1 / 3)
    assert top_k_accuracy(logits, labels, 2) == pytest.approx(2 / 3)
    assert top_k_accuracy(logits, labels, 9) == 1.0


def test_average_precision_is_the_mean_precision_at_each_hit() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(40, 6, generator=generator)
    targets = (torch.rand(40, 6, generator=generator) < 0.2).float()
    targets[:, 5] = 0  # a class that does not occur does not count
    slow = []
    for column in range(5):
        ranked = sorted(range(40), key=lambda i: -float(scores[i, column]))
        hits, precisions = 0, []
        for rank, i in enumerate(ranked, 1):
            if targets[i, column]:
                hits += 1
                precisions.append(hits / rank)
        slow.append(sum(precisions) / len(precisions))
    assert average_precision(scores, targets) == pytest.approx(sum(slow) / 5)
    assert average_precision(scores, torch.zeros(40, 6)) == 0.0


def test_resnet_knows_where_in_frequency_a_sound_is() -> None:
    """Two bands far apart must not look alike after the frequency axis is joined."""
    torch.manual_seed(1)
    config = ClassifierConfig(labels=("a", "b"), backbone=ResNetConfig())
    classifier = Classifier(config).eval()
    low, high = torch.zeros(1, 80, 32), torch.zeros(1, 80, 32)
    low[:, 8:12], high[:, 56:60] = 1.0, 1.0
    with torch.inference_mode():
        apart = (classifier(low).features - classifier(high).features).abs().max()
    assert apart > 0.01
