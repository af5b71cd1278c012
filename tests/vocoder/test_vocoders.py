"""What every vocoder keeps, and what the iSTFT vocoder and Griffin-Lim are good for."""

from __future__ import annotations

import librosa
import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from diffsound.audio.mel import MelConfig, MelFrontEnd, normalise, stft
from diffsound.threads import torch_threads
from diffsound.vocoder import (
    GriffinLimConfig,
    ISTFTConfig,
    MelGANConfig,
    VocoderConfig,
    build_vocoder,
)
from diffsound.vocoder.discriminator import SpectralLoss
from diffsound.vocoder.griffin_lim import GriffinLim
from diffsound.vocoder.istft import ISTFTVocoder

MEL = MelConfig.full_band(n_fft=64, hop_length=16, n_mels=10)
CONFIGS = [
    MelGANConfig(base=4, residual_layers=2, ratios=(4, 4)),
    ISTFTConfig(width=16, layers=2),
    GriffinLimConfig(iterations=2),
]


def sound(samples: int = 22016) -> Tensor:
    """A pitched, decaying sound over a little noise: [1, samples]."""
    time = torch.arange(samples) / 22050
    noise = torch.randn(samples, generator=torch.Generator().manual_seed(0))
    tones = sum(torch.sin(2 * torch.pi * 330 * k * time) / k for k in range(1, 6))
    return (0.3 * tones * torch.exp(-3 * time) + 0.01 * noise)[None]


def convergence(wave: Tensor, magnitudes: Tensor, config: MelConfig) -> float:
    """Spectral convergence: the relative distance of a wave's magnitudes from those wanted."""
    made = MelFrontEnd(config).magnitudes(wave)
    return float((made - magnitudes).norm() / magnitudes.norm())


@pytest.fixture(params=CONFIGS, ids=lambda config: config.kind)
def vocoder(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    return build_vocoder(request.param, MEL).eval()


def test_every_length_comes_out_exact(vocoder: nn.Module) -> None:
    with torch.inference_mode():
        for frames in range(1, 201):
            wave = vocoder(torch.rand(1, 10, frames))
            assert wave.shape == (1, frames * 16)
            assert wave.isfinite().all()


def test_an_item_alone_and_in_a_batch_sounds_the_same(vocoder: nn.Module) -> None:
    mels = torch.rand(3, 10, 20)
    with torch.inference_mode():
        together = vocoder(mels)
        for index in range(3):
            alone = vocoder(mels[index : index + 1])[0]
            torch.testing.assert_close(together[index], alone, atol=1e-4, rtol=1e-4)


def test_the_same_mel_is_the_same_wave(vocoder: nn.Module) -> None:
    mel = torch.rand(1, 10, 20)
    with torch.inference_mode():
        first = vocoder(mel)
        torch.manual_seed(99)
        torch.testing.assert_close(vocoder(mel), first, atol=0, rtol=0)


@pytest.mark.parametrize("config", CONFIGS[:2], ids=lambda config: config.kind)
def test_every_parameter_learns(config: MelGANConfig | ISTFTConfig) -> None:
    vocoder = build_vocoder(config, MEL)
    wave = vocoder(torch.rand(2, 10, 12))
    (wave * torch.randn_like(wave)).sum().backward()
    for name, parameter in vocoder.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("level", [-5.0, 0.0, 1.0, 50.0])
def test_any_mel_gives_finite_samples(vocoder: nn.Module, level: float) -> None:
    with torch.inference_mode():
        assert vocoder(torch.full((1, 10, 8), level)).isfinite().all()


def test_a_config_is_chosen_by_its_kind() -> None:
    adapter: TypeAdapter[VocoderConfig] = TypeAdapter(VocoderConfig)
    for config in CONFIGS:
        assert adapter.validate_python(config.model_dump()) == config
    with pytest.raises(ValidationError, match="kind"):
        adapter.validate_python({"kind": "wavenet"})
    with pytest.raises(ValidationError, match="odd"):
        ISTFTConfig(kernel=4)


# The iSTFT vocoder


def test_the_default_is_a_small_network() -> None:
    vocoder = ISTFTVocoder(ISTFTConfig(), MelConfig())
    assert 2.5e6 < sum(parameter.numel() for parameter in vocoder.parameters()) < 3e6


def test_the_spectrum_is_what_is_transformed() -> None:
    vocoder = ISTFTVocoder(CONFIGS[1], MEL)
    mel = torch.rand(1, 10, 9)
    magnitude, phase = vocoder.spectrum(mel)
    assert magnitude.shape == phase.shape == (1, MEL.bins, 9)
    # Overlap and add, frame by frame, then divide by the windows' energy.
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(64) / 64)
    total, energy = np.zeros(64 + 8 * 16), np.zeros(64 + 8 * 16)
    spectrum = (magnitude * torch.exp(1j * phase))[0].detach().numpy()
    for frame in range(9):
        span = slice(frame * 16, frame * 16 + 64)
        total[span] += window * np.fft.irfft(spectrum[:, frame])
        energy[span] += window**2
    expected = (total / np.maximum(energy, 1e-9))[32 : 32 + 9 * 16]
    np.testing.assert_allclose(vocoder(mel)[0].detach().numpy(), expected, atol=1e-4)


@pytest.mark.parametrize("config", [MelConfig(), MelConfig.full_band()], ids=["published", "full"])
def test_untrained_magnitudes_follow_the_mel(config: MelConfig) -> None:
    noise = torch.randn(1, 16384, generator=torch.Generator().manual_seed(0))
    wave = 0.01 * noise.cumsum(1) * torch.linspace(0, -6, 16384).exp()
    front_end = MelFrontEnd(config)
    torch.manual_seed(0)
    vocoder = ISTFTVocoder(ISTFTConfig(width=16, layers=1), config)
    floor = 3e-3  # of what the mel can tell
    made = vocoder.spectrum(front_end(wave))[0].clamp_min(floor).log()
    true = front_end.magnitudes(wave).clamp_min(floor).log()
    inside = front_end.basis.sum(0) > 0
    error = (made - true)[:, inside].abs().mean()
    spread = (true - true.mean())[:, inside].abs().mean()
    assert error < 0.5 * spread


def test_half_precision_runs() -> None:
    vocoder = ISTFTVocoder(CONFIGS[1], MEL).eval()
    mel = torch.rand(1, 10, 8)
    with torch.inference_mode():
        exact = vocoder(mel)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            autocast = vocoder(mel)
        cast = vocoder.bfloat16()(mel.bfloat16())
    for wave in (autocast, cast):
        assert wave.dtype == torch.float32
        assert (wave - exact).norm() < 0.1 * exact.norm()


def test_it_learns_one_sound() -> None:
    torch.manual_seed(0)
    config = MelConfig.full_band(n_fft=256, hop_length=64, n_mels=32)
    wave = sound(64 * 64)
    mel = MelFrontEnd(config)(wave)[..., :-1]
    vocoder = ISTFTVocoder(ISTFTConfig(width=64, layers=2), config)
    optimizer = torch.optim.AdamW(vocoder.parameters(), lr=2e-3)
    loss = SpectralLoss((512, 256, 128))
    losses = []
    for _ in range(60):
        value = loss(vocoder(mel), wave)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert losses[-1] < 0.5 * losses[0]


# Griffin-Lim


@pytest.mark.parametrize("config", [MelConfig(), MelConfig.full_band()], ids=["published", "full"])
def test_it_restores_most_of_the_mel(config: MelConfig) -> None:
    front_end = MelFrontEnd(config)
    mel = front_end(sound())
    griffin_lim = GriffinLim(GriffinLimConfig(), config)
    wave = griffin_lim(mel[..., :-1])
    random_phase = GriffinLim(GriffinLimConfig(iterations=0), config)(mel[..., :-1])
    wanted = griffin_lim.front_end.to_linear(mel)
    assert convergence(wave, wanted, config) < 0.3
    assert convergence(wave, wanted, config) < 0.4 * convergence(random_phase, wanted, config)
    assert (front_end(wave) - mel).abs().mean() < 0.02


def test_it_converges_as_librosas_does() -> None:
    config = MelConfig(padding="constant")
    magnitudes = stft(sound(), torch.hann_window(1024), 256, "constant").abs()
    ours = GriffinLim(GriffinLimConfig(iterations=16), config).from_magnitudes(magnitudes)
    theirs = librosa.griffinlim(
        magnitudes[0].numpy(), n_iter=16, hop_length=256, momentum=0.99, random_state=0
    )
    own = convergence(ours, magnitudes, config)
    other = convergence(torch.from_numpy(theirs)[None], magnitudes, config)
    assert own < 1.15 * other


def test_more_iterations_come_nearer() -> None:
    config = MelConfig()
    magnitudes = MelFrontEnd(config).magnitudes(sound())
    errors = [
        convergence(
            GriffinLim(GriffinLimConfig(iterations=n), config).from_magnitudes(magnitudes),
            magnitudes,
            config,
        )
        for n in (0, 4, 16, 48)
    ]
    assert errors == sorted(errors, reverse=True)


def test_the_seed_chooses_the_phases() -> None:
    mel = torch.rand(1, 10, 20)
    waves = [GriffinLim(GriffinLimConfig(iterations=2, seed=n), MEL)(mel) for n in (0, 0, 1)]
    torch.testing.assert_close(waves[0], waves[1], atol=0, rtol=0)
    assert (waves[0] - waves[2]).abs().max() > 0.01 * waves[0].abs().max()


@pytest.mark.parametrize("frames", [16, 37, 200])
def test_griffin_lim_rounds_alike_with_any_number_of_threads(frames: int) -> None:
    vocoder = GriffinLim(GriffinLimConfig(iterations=4), MEL)
    mel = torch.rand(1, MEL.n_mels, frames, generator=torch.Generator().manual_seed(5))
    mel[..., : frames // 4] = 0  # silence, where there is no phase
    waves = []
    for threads in (1, 2, 3):
        with torch_threads(threads):
            waves.append(vocoder(mel))
    assert torch.isfinite(waves[0]).all()
    assert all(torch.equal(waves[0], wave) for wave in waves)


def test_fits_bring_the_magnitudes_to_the_mel() -> None:
    """Whatever the network says; where the mel says nothing, the network is left alone."""
    mel = MelFrontEnd(MEL)(torch.randn(1, 8192, generator=torch.Generator().manual_seed(0)) * 0.1)
    distances = []
    for fits in (0, 2, 8):
        vocoder = ISTFTVocoder(ISTFTConfig(width=16, layers=1, fits=fits), MEL)
        with torch.no_grad():
            torch.nn.init.normal_(vocoder.head.weight, generator=torch.Generator().manual_seed(1))
            magnitude, _ = vocoder.spectrum(mel)
            again = normalise(vocoder.basis @ magnitude)
        distances.append(float((again - mel).abs().mean()))
    assert distances[1] < 0.2 * distances[0]
    assert distances[2] < 0.5 * distances[1]


def test_rounds_make_phases_fit_each_other() -> None:
    """The wave's own spectrum comes nearer to the magnitudes that were asked for."""
    mel = MelFrontEnd(MEL)(torch.randn(1, 8192, generator=torch.Generator().manual_seed(0)) * 0.1)
    window = torch.hann_window(MEL.n_fft)
    errors = []
    for rounds in (0, 2, 8):
        torch.manual_seed(2)
        vocoder = ISTFTVocoder(ISTFTConfig(width=16, layers=1, rounds=rounds), MEL)
        with torch.no_grad():
            magnitude, _ = vocoder.spectrum(mel)
            spectrum = stft(vocoder(mel), window, MEL.hop_length, MEL.padding)[..., :-1]
        errors.append(float((spectrum.abs() - magnitude).norm() / magnitude.norm()))
    assert errors[0] > errors[1] > errors[2]


def test_silence_passes_through_fits_and_rounds() -> None:
    mel_config = MelConfig.full_band()
    vocoder = ISTFTVocoder(ISTFTConfig(width=16, layers=1, fits=2, rounds=3), mel_config)
    mel = torch.zeros(1, mel_config.n_mels, 20, requires_grad=True)
    wave = vocoder(mel)
    assert wave.isfinite().all()
    assert float(wave.detach().square().mean().sqrt()) < 2e-4
    wave.square().sum().backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in vocoder.parameters())
