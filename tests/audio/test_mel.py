"""The mel front end against librosa, the published numbers, and its own inverse."""

from __future__ import annotations

from pathlib import Path

import librosa
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from diffsound.audio.mel import (
    MelConfig,
    MelFrontEnd,
    denormalise,
    istft,
    mel_basis,
    normalise,
    reflect_pad,
    stft,
)
from diffsound.errors import InputError

GOLDEN = Path(__file__).parent / "golden" / "mel_frontend.npz"


def librosa_mel(wave: np.ndarray, config: MelConfig) -> np.ndarray:
    mel = librosa.feature.melspectrogram(
        y=wave,
        sr=config.sample_rate,
        n_fft=config.n_fft,
        hop_length=config.hop_length,
        power=1,
        n_mels=config.n_mels,
        fmin=config.fmin,
        fmax=config.fmax,
        pad_mode=config.padding,
    )
    decibels = librosa.amplitude_to_db(mel, ref=1.0, amin=1e-5, top_db=None)
    return np.clip((decibels - 20 + 100) / 100, 0, 1)


def signals() -> dict[str, np.ndarray]:
    time = np.arange(22050) / 22050
    noise = np.random.default_rng(0).standard_normal(22050)
    return {
        "tone": np.sin(2 * np.pi * 1000 * time),  # the widest range between neighbouring bands
        "sweep": np.sin(2 * np.pi * (50 * time + 5000 * time**2)),
        "click": (np.arange(22050) == 11000) * 1.0,
        "noise": 0.1 * noise,
        "decay": noise * np.exp(-20 * time),
        "silence": np.zeros(22050),
    }


@pytest.mark.parametrize("padding", ["reflect", "constant"])
def test_equals_the_published_front_end(padding: str) -> None:
    golden = np.load(GOLDEN)
    front_end = MelFrontEnd(MelConfig(padding=padding))
    mel = front_end(torch.from_numpy(golden["wave"])[None])
    assert mel.shape == (1, 80, 862)
    assert np.abs(front_end.basis.numpy() - golden["basis"]).max() < 1e-7
    assert np.abs(mel[0, :, :860].numpy() - golden[padding]).max() < 1e-5


@pytest.mark.parametrize("name", signals())
@pytest.mark.parametrize(
    "config",
    [
        MelConfig(),
        MelConfig.full_band(),
        MelConfig(sample_rate=16000, n_fft=512, hop_length=128, n_mels=40, padding="constant"),
    ],
    ids=["published", "full band", "other"],
)
def test_equals_librosa(name: str, config: MelConfig) -> None:
    wave = signals()[name].astype(np.float32)
    mel = MelFrontEnd(config)(torch.from_numpy(wave)[None])[0]
    assert np.abs(mel.numpy() - librosa_mel(wave, config)).max() < 1e-5


@pytest.mark.parametrize("config", [MelConfig(), MelConfig.full_band(n_mels=128)])
def test_basis_equals_librosa(config: MelConfig) -> None:
    expected = librosa.filters.mel(
        sr=config.sample_rate,
        n_fft=config.n_fft,
        n_mels=config.n_mels,
        fmin=config.fmin,
        fmax=config.fmax,
    )
    torch.testing.assert_close(mel_basis(config), torch.from_numpy(expected), atol=1e-8, rtol=1e-6)


@given(samples=st.integers(1, 3000))
@settings(max_examples=30, deadline=None)
def test_any_length_has_the_promised_frames(samples: int) -> None:
    config = MelConfig(n_fft=256, hop_length=64, n_mels=16)
    mel = MelFrontEnd(config)(torch.randn(2, samples))
    assert mel.shape == (2, 16, config.frames_for(samples))
    assert mel.min() >= 0
    assert mel.max() <= 1


@given(length=st.integers(1, 40), amount=st.integers(0, 100))
@settings(deadline=None)
def test_reflection_is_numpys(length: int, amount: int) -> None:
    signal = torch.randn(2, length)
    expected = np.pad(signal.numpy(), ((0, 0), (amount, amount)), mode="reflect")
    np.testing.assert_array_equal(reflect_pad(signal, amount).numpy(), expected)


def test_a_wave_alone_and_in_a_batch_have_the_same_mel() -> None:
    front_end = MelFrontEnd(MelConfig())
    waves = torch.randn(3, 5000)
    together = front_end(waves)
    for index in range(3):
        torch.testing.assert_close(together[index], front_end(waves[index : index + 1])[0])


def test_gradient_is_right() -> None:
    config = MelConfig(n_fft=64, hop_length=16, n_mels=4)
    front_end = MelFrontEnd(config)
    wave = 0.3 * torch.randn(1, 100, dtype=torch.float64)
    direction = torch.randn_like(wave)
    direction /= direction.norm()
    wave.requires_grad_()
    front_end(wave).double().sum().backward()
    assert wave.grad is not None
    step = 1e-3
    with torch.no_grad():
        difference = front_end(wave + step * direction) - front_end(wave - step * direction)
    slope = difference.double().sum() / (2 * step)
    torch.testing.assert_close((wave.grad * direction).sum(), slope, rtol=0.01, atol=1e-3)


def test_silence_has_a_finite_gradient() -> None:
    wave = torch.zeros(1, 2048, requires_grad=True)
    MelFrontEnd(MelConfig())(wave).sum().backward()
    assert wave.grad is not None
    assert wave.grad.isfinite().all()


def test_half_precision_only_rounds_the_wave() -> None:
    wave = torch.randn(1, 8192).bfloat16()
    expected = MelFrontEnd(MelConfig())(wave.float())
    cast = MelFrontEnd(MelConfig()).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mel = cast(wave)
    torch.testing.assert_close(mel, expected)


def test_the_fast_path_is_close_to_the_precise_one() -> None:
    wave = torch.from_numpy(signals()["decay"]).float()[None]
    quick = MelFrontEnd(MelConfig(), precise=False)(wave)
    torch.testing.assert_close(quick, MelFrontEnd(MelConfig())(wave), atol=1e-3, rtol=0)


def test_the_front_end_adds_nothing_to_a_checkpoint() -> None:
    assert MelFrontEnd(MelConfig()).state_dict() == {}


def test_normalisation_inverts() -> None:
    mel = torch.linspace(-0.1, 1.2, 50)
    torch.testing.assert_close(normalise(denormalise(mel)), mel)
    assert normalise(torch.tensor(0.0)).isfinite()


@pytest.mark.parametrize("config", [MelConfig(), MelConfig.full_band()])
def test_linear_magnitudes_have_the_mel_they_came_from(config: MelConfig) -> None:
    front_end = MelFrontEnd(config)
    wave = torch.from_numpy(signals()["decay"]).float()[None]
    mel, true = front_end(wave), front_end.magnitudes(wave)
    linear = front_end.to_linear(mel)
    plain = (torch.linalg.pinv(front_end.basis) @ denormalise(mel)).clamp_min(0)
    assert linear.shape == true.shape
    assert linear.min() >= 0

    def mel_error(magnitudes: torch.Tensor) -> float:
        return float((normalise(front_end.basis @ magnitudes).clamp(0, 1) - mel).abs().mean())

    assert mel_error(linear) < 5e-4
    assert mel_error(linear) < mel_error(plain)
    assert (linear - true).norm() < (plain - true).norm()


@pytest.mark.parametrize("frames", [1, 2, 7])
def test_istft_inverts_stft(frames: int) -> None:
    window = torch.hann_window(64)
    wave = torch.randn(2, frames * 16)
    torch.testing.assert_close(
        istft(stft(wave, window, 16), window, 16, frames * 16), wave, atol=1e-5, rtol=1e-4
    )


@pytest.mark.parametrize("shape", [(100,), (1, 0), (1, 2, 100)])
def test_a_wrong_shape_is_named(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"\[B, samples > 0\]"):
        MelFrontEnd(MelConfig())(torch.zeros(shape))


@pytest.mark.parametrize(
    "changes", [{"fmax": 12000}, {"fmin": 8000}, {"hop_length": 512}, {"n_fft": 1023}]
)
def test_contradictory_constants_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        MelConfig(**changes)
