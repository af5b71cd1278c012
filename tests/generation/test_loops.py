"""Loops: two repetitions have no step that the sound does not have elsewhere."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

import diffsound
from diffsound.errors import InputError
from diffsound.evaluation.loops import seam
from diffsound.generation.jobs import Job
from diffsound.generation.loops import close, cross_fade, seam_known, wrapped
from diffsound.generation.pipeline import TextToSound
from diffsound.generation.scenes import mix, plan_scene, timed_voices

RATE = 22050


def noise(samples: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(samples).astype(np.float32)


@cache
def shipped() -> TextToSound:
    return diffsound.load()


@pytest.mark.parametrize("prompt", ["heavy rain falls", "a car engine idles", "a crowd talks"])
def test_the_shipped_model_makes_loops_without_a_seam(prompt: str) -> None:
    loop, plain = (
        shipped()(prompt, duration=2.0, seed=1, layered=False, loop=on)[0] for on in (True, False)
    )
    assert len(loop.wave) == len(plain.wave) == 2 * RATE
    with_loop, without = seam(loop.wave, RATE), seam(plain.wave, RATE)
    assert with_loop.worst < 1.25
    assert without.worst > 1.4 * with_loop.worst


def test_a_ring_of_the_right_length_keeps_its_samples() -> None:
    ring = noise(RATE)
    assert np.allclose(close(np.tile(ring, 2), RATE, RATE, RATE), ring, atol=1e-6)


@pytest.mark.parametrize("surplus", [1, 700, 4095])
def test_a_ring_is_cut_to_length_without_a_step(surplus: int) -> None:
    tone = np.sin(2 * np.pi * 441 * np.arange(2 * RATE) / RATE).astype(np.float32)
    tone += 0.01 * np.tile(noise(RATE), 2)
    cut = close(tone, RATE, RATE - surplus, RATE)
    assert len(cut) == RATE - surplus
    steepest = np.abs(np.diff(tone)).max()
    assert np.abs(np.diff(np.append(cut, cut[0]))).max() < 1.2 * steepest
    assert seam(cut, RATE).worst < 1.25


def test_a_cut_is_in_phase_where_possible() -> None:
    """The pitch changes half-way; only in the second half do the periods fit the cut."""
    time = np.arange(RATE) / RATE
    wave = np.where(time < 0.5, np.sin(2 * np.pi * 333 * time), np.sin(2 * np.pi * 441 * time))
    cut = close(np.tile(wave, 2), RATE, RATE - 150, RATE)  # three periods of 441 Hz
    assert np.allclose(cut[: RATE // 2 - 700][700:], wave[: RATE // 2 - 700][700:])


@pytest.mark.parametrize("same", [True, False])
def test_a_cross_fade_keeps_the_level(same: bool) -> None:
    before, after = noise(20_000), noise(20_000, seed=0 if same else 1)
    middle = cross_fade(before, after)[8_000:12_000]
    assert np.sqrt(np.square(middle).mean()) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("width", [1, 2, 3, 11, 27])
def test_only_the_cells_around_the_seam_are_redrawn(width: int) -> None:
    tokens = torch.arange(width).expand(2, 3, width)
    known, roll = seam_known(tokens)
    redrawn = tokens[~known.keep.roll(-roll, 2)]
    assert {0, width - 1} == set(redrawn.tolist()) & {0, width - 1}
    assert torch.equal(known.tokens.roll(-roll, 2), tokens)
    assert known.keep.sum() >= tokens.numel() // 3 or width < 4


def test_a_ring_can_wrap_more_than_once() -> None:
    assert wrapped(torch.arange(3), 4).tolist() == [2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("duration", [0.5, 1.3])
def test_a_loop_is_the_same_alone_and_in_a_batch(pipeline: TextToSound, duration: float) -> None:
    shares: list[float] = []
    several = pipeline(
        ["rain", "wind"], duration=duration, seed=3, loop=True,
        callback=lambda share, _: shares.append(share),
    )  # fmt: skip
    (alone,) = pipeline("wind", duration=duration, seed=3, loop=True)
    assert np.array_equal(alone.wave, several[1].wave)
    assert len(alone.wave) == round(duration * pipeline.sample_rate)
    assert alone.settings["loop"] is True
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_continuous_layers_loop_together(pipeline: TextToSound) -> None:
    prompt = "rain falls while a crowd cheers in the distance"
    (scene,) = pipeline(prompt, duration=2, seed=1, layered=True, loop=True)
    assert len(scene.layers) == 2
    assert all(layer.wave[0] and layer.wave[-1] for layer in scene.layers)
    (plain,) = pipeline(prompt, duration=2, seed=1, layered=True)
    assert plain.layers[0].wave[0] == 0


def test_a_distant_layer_of_a_loop_has_no_seam() -> None:
    job = Job("rain falls while a crowd cheers in the distance", seed=1)
    worst = []
    for loop in (True, False):
        plan = plan_scene(job, timed_voices(job.prompt, lambda _: None, 5.0), 2 * RATE, RATE, loop)
        assert plan is not None
        _, layers = mix(plan, [0.1 * noise(2 * RATE, seed) for seed in (1, 2)], RATE)
        worst.append(seam(layers[1].wave, RATE).worst)
    assert worst[0] < 1.25
    assert worst[1] > 1.5


def test_a_loop_has_no_order_and_is_made_in_one_piece(pipeline: TextToSound) -> None:
    prompt = "rain falls, then a dog barks"
    assert pipeline(prompt, duration=2, seed=1, layered=True)[0].layers
    assert not pipeline(prompt, duration=2, seed=1, layered=True, loop=True)[0].layers


def test_an_edit_cannot_be_a_loop(pipeline: TextToSound) -> None:
    (loop,) = pipeline("rain", duration=1, seed=1, loop=True)
    with pytest.raises(InputError, match="cannot be a loop"):
        pipeline.extend(loop, "rain", 1.0, loop=True)
    (longer,) = pipeline.extend(loop, "rain", 0.5, seed=1)
    kept = len(loop.wave) - round(0.02 * RATE) - 1
    assert np.array_equal(longer.wave[:kept], loop.wave[:kept])


def test_a_seam_that_is_a_place_like_any_other() -> None:
    worst = [seam(noise(32000, seed), 16000).worst for seed in range(20)]
    assert np.median(worst) < 1
    assert max(worst) < 1.5


@pytest.mark.parametrize(
    ("fault", "name"),
    [("fade", "dip"), ("louder", "level"), ("duller", "spectrum"), ("phase", "jump")],
)
def test_a_seam_shows_its_fault(fault: str, name: str) -> None:
    wave = noise(32000)
    share = np.arange(len(wave)) / len(wave)
    if fault == "fade":
        wave[:64] *= np.linspace(0, 1, 64)
        wave[-64:] *= np.linspace(1, 0, 64)
    elif fault == "louder":
        wave *= 10 ** (share / 2)
    elif fault == "duller":
        dull = np.convolve(wave, np.ones(8) / 8**0.5, mode="same")
        wave = (np.sqrt(1 - share) * wave + np.sqrt(share) * dull).astype(np.float32)
    else:
        wave = 0.001 * wave + np.sin(2 * np.pi * 440.25 * 2 * share).astype(np.float32)
    found = seam(wave, 16000)
    assert getattr(found, name) == found.worst
    assert found.worst > 1.5
