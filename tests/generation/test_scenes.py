"""Scenes of several sounds, made one by one and mixed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from diffsound.audio.io import read_audio
from diffsound.audio.mixing import PEAK, active_rms, event_starts
from diffsound.errors import InputError
from diffsound.evaluation.onsets import onsets
from diffsound.generation.jobs import Job, layer_seed, take_seed
from diffsound.generation.pipeline import TextToSound
from diffsound.generation.scenes import (
    BACKGROUND_DB,
    DISTANT_DB,
    OVERLAP,
    LookUp,
    Plan,
    mix,
    plan_scene,
    scene_seconds,
    timed_voices,
)
from diffsound.generation.sound import read_recipe
from diffsound.model.bundle import Bundle
from diffsound.model.coverage import NaturalLength

RATE = 22050
SCENE = "rain, then a dog barks in the distance"


def plan(prompt: str, seconds: float = 4.0) -> Plan:
    made = planned(prompt, seconds)
    assert made is not None
    return made


def planned(prompt: str, seconds: float, learned: LookUp = lambda _: None) -> Plan | None:
    voices = timed_voices(prompt, learned, usual=5.0)
    return plan_scene(Job(prompt, 7), voices, round(seconds * RATE), RATE)


def noise(samples: int, level: float, seed: int = 0) -> np.ndarray:
    return level * np.random.default_rng(seed).standard_normal(samples).astype(np.float32)


def db(ratio: float) -> float:
    return 20 * float(np.log10(ratio))


def test_moments_share_the_time() -> None:
    first, second = plan("rain, then a dog barks").slots
    overlap = round(OVERLAP * RATE)
    assert (first.start, first.length) == (0, 2 * RATE + overlap)
    assert (second.start, second.length) == (2 * RATE, 2 * RATE)
    assert first.fades
    assert not second.fades


def test_simultaneous_sounds_and_backgrounds_last_the_whole_scene() -> None:
    for prompt in ("a dog barks while a cat meows", "a dog barks with rain in the background"):
        assert [(s.start, s.length) for s in plan(prompt).slots] == [(0, 4 * RATE)] * 2


def test_a_single_sound_or_too_little_time_gives_no_scene() -> None:
    assert planned("a dog barks", 4.0) is None
    assert planned("rain, then a dog barks", 1.9) is None


def test_seeds_differ_between_layers_and_takes() -> None:
    assert layer_seed(5, 0) == take_seed(5, 0) == 5
    seeds = {layer_seed(5, n) for n in range(6)} | {take_seed(5, n) for n in range(1, 6)}
    assert len(seeds) == 11


def test_layers_add_up_and_nothing_clips() -> None:
    asked = plan("a dog barks while a cat meows")
    wave, layers = mix(asked, [noise(4 * RATE, 0.6), noise(4 * RATE, 0.9, 1)], RATE)
    assert np.abs(wave).max() == pytest.approx(PEAK, abs=1e-5)
    np.testing.assert_allclose(sum(layer.wave for layer in layers), wave, atol=1e-6)


def test_faint_and_loud_sounds_are_brought_to_their_mean_level() -> None:
    asked = plan("a dog barks while a cat meows")
    _, layers = mix(asked, [noise(4 * RATE, 0.001), noise(4 * RATE, 0.01, 1)], RATE)
    levels = [active_rms(layer.wave, RATE) for layer in layers]
    assert db(levels[0] / levels[1]) == pytest.approx(0, abs=0.1)
    assert [round(layer.gain_db) for layer in layers] == [10, -10]


def test_backgrounds_are_quieter() -> None:
    asked = plan("a dog barks with rain in the background")
    _, (dog, rain) = mix(asked, [noise(4 * RATE, 0.01), noise(4 * RATE, 0.01, 1)], RATE)
    assert rain.background
    ratio = active_rms(rain.wave, RATE) / active_rms(dog.wave, RATE)
    assert db(ratio) == pytest.approx(BACKGROUND_DB, abs=0.1)


def test_distant_sounds_are_quieter_and_duller() -> None:
    asked = plan("a dog barks in the distance")
    near = noise(4 * RATE, 0.01)
    wave, (layer,) = mix(asked, [near], RATE)
    assert layer.distant
    assert layer.gain_db == pytest.approx(DISTANT_DB)

    def power(signal: np.ndarray, low: float, high: float) -> float:
        frequency = np.fft.rfftfreq(len(signal), 1 / RATE)
        chosen = (frequency >= low) & (frequency < high)
        return float(np.square(np.abs(np.fft.rfft(signal)))[chosen].sum())

    low, high = (10 * np.log10(power(wave, *b) / power(near, *b)) for b in ((50, 800), (6e3, 9e3)))
    assert low == pytest.approx(DISTANT_DB, abs=2)
    assert high < low - 15


def test_silence_stays_silent() -> None:
    asked = plan("a dog barks while a cat meows")
    wave, layers = mix(asked, [np.zeros(4 * RATE, np.float32)] * 2, RATE)
    assert not wave.any()
    assert [layer.gain_db for layer in layers] == [0, 0]


def test_a_scene_is_made_of_its_sounds(pipeline: TextToSound) -> None:
    (scene,) = pipeline(SCENE, duration=3, seed=4, layered=True)
    assert len(scene.wave) == 3 * RATE
    assert scene.prompt == SCENE
    assert scene.tokens.shape == (
        pipeline.bundle.codec.rows,
        pipeline.bundle.columns(len(scene.wave)),
    )
    assert scene.mel.shape[1] == scene.tokens.shape[1] * pipeline.bundle.codec.time_stride
    assert [(layer.text, layer.distant) for layer in scene.layers] == [
        ("rain", False),
        ("a dog barks", True),
    ]
    assert [layer["text"] for layer in scene.metadata["layers"]] == ["rain", "a dog barks"]
    # The first layer is, up to its gain and the fade at its end, what its own prompt makes.
    (rain,) = pipeline("rain", duration=1.5 + OVERLAP, seed=4)
    whole = round(1.5 * RATE)
    gain = np.float32(10 ** (scene.layers[0].gain_db / 20))
    np.testing.assert_allclose(scene.layers[0].wave[:whole], rain.wave[:whole] * gain, atol=1e-5)
    assert not scene.layers[1].wave[:whole].any()


def test_without_layers_the_sound_is_made_in_one_piece(pipeline: TextToSound) -> None:
    whole, plain = (pipeline(SCENE, duration=3, seed=4, **s)[0] for s in ({}, {"layered": False}))
    assert not whole.layers
    assert np.array_equal(whole.wave, plain.wave)
    one, layered = (pipeline("rain", seed=4, layered=on)[0] for on in (False, True))
    assert np.array_equal(one.wave, layered.wave)


def test_scenes_are_the_same_alone_and_in_a_batch(tiny_bundle: Bundle) -> None:
    pipeline = TextToSound(tiny_bundle, max_batch_seconds=3)
    prompts = ["a dog barks", SCENE, "wind while a cat meows"]
    shares: list[float] = []
    together = pipeline(
        prompts, duration=2, seed=3, layered=True, callback=lambda share, _: shares.append(share)
    )
    alone = [pipeline(prompt, duration=2, seed=3, layered=True)[0] for prompt in prompts]
    for a, b in zip(together, alone, strict=True):
        assert a.prompt == b.prompt
        assert np.array_equal(a.wave, b.wave)
        assert np.array_equal(a.tokens, b.tokens)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_edits_are_made_in_one_piece(pipeline: TextToSound) -> None:
    (scene,) = pipeline(SCENE, duration=3, seed=4, layered=True)
    (edited,) = pipeline.inpaint(scene, SCENE, 1.0, 2.0, seed=1, layered=True)
    assert not edited.layers
    assert np.array_equal(edited.wave[: RATE // 2], scene.wave[: RATE // 2])


def test_layered_must_be_a_boolean(pipeline: TextToSound) -> None:
    with pytest.raises(InputError, match="layered"):
        pipeline("rain", layered="perhaps")


def test_stem_files_add_up_to_the_scene(pipeline: TextToSound, tmp_path: Path) -> None:
    (scene,) = pipeline(SCENE, duration=3, seed=4, layered=True)
    paths = scene.save_layers(tmp_path / "x.flac")
    assert [path.name for path in paths] == ["x-layer1.flac", "x-layer2.flac"]
    total = sum(read_audio(path, RATE) for path in paths)
    np.testing.assert_allclose(total, scene.wave, atol=2e-4)
    note = read_recipe(paths[1])
    assert note["text"] == "a dog barks"
    assert note["distant"] is True


LEARNED = {
    "a gunshot": NaturalLength(0.4, events=1, single=True, goes_on=False),
    "a dog barks": NaturalLength(2.4, events=4, single=False, goes_on=False),
    "a clap": NaturalLength(5.0, events=14, single=False, goes_on=True),
    "rain": NaturalLength(9.0, events=3, single=False, goes_on=True),
}


@pytest.mark.parametrize(
    ("prompt", "low", "high"),
    [
        ("a gunshot", 0.5, 0.8),
        ("three gunshots", 1.2, 2.5),
        ("a dog barks", 2.4, 3.2),
        ("a dog barks once", 0.7, 1.2),
        ("a dog barks twice", 1.4, 2.2),
        ("a dog barks for 7 seconds", 7.0, 7.0),
        ("a clap", 0.5, 1.0),
        ("rain", 5.0, 5.0),
        ("rain for 20 seconds", 20.0, 20.0),
        ("rain, then a gunshot", 5.5, 5.8),
        ("a dog barks while rain falls", 5.0, 5.0),
        ("an unknown thing", 5.0, 5.0),
    ],
)
def test_natural_lengths(prompt: str, low: float, high: float) -> None:
    assert low <= scene_seconds(timed_voices(prompt, LEARNED.get, usual=5.0)) <= high


def test_moments_share_the_time_by_their_natural_lengths() -> None:
    natural = scene_seconds(timed_voices("rain, then a gunshot", LEARNED.get, usual=5.0))
    for seconds, edge in ((natural, 5.0), (12.0, 11.3)):
        made = planned("rain, then a gunshot", seconds, LEARNED.get)
        assert made is not None
        assert made.slots[1].start / RATE == pytest.approx(edge, abs=0.1)
    assert planned("rain, then a gunshot", 1.4, LEARNED.get) is None


def barks(samples: int) -> np.ndarray:
    """Four bursts of noise, half a second apart."""
    time = np.arange(samples) / RATE
    return noise(samples, 0.2) * np.exp(-12 * (time % 0.5)).astype(np.float32)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_counted_event_is_heard_as_often_as_asked_for(count: int) -> None:
    prompt = f"a dog barks {['once', 'twice', 'three times'][count - 1]}"
    made = planned(prompt, 4.0, LEARNED.get)
    assert made is not None
    assert [job.prompt for job in made.jobs] == ["a dog barks"]
    ((_, length),) = made.pieces
    assert length < 4 * RATE
    wave, _ = mix(made, [barks(length)], RATE)
    assert len(wave) == 4 * RATE
    assert len(event_starts(wave, RATE)) == count
    assert len(onsets(wave, RATE)) == count
    assert not wave[-RATE // 4 :].any()


def test_a_natural_sound_is_remade_by_its_recorded_duration(knowing: Bundle) -> None:
    assert knowing.coverage is not None
    lengths = torch.tensor([[0.7, 0, 1, 1], [5, 1, 0, 3], [0.6, 0, 1, 1]])
    bundle = dataclasses.replace(
        knowing, coverage=dataclasses.replace(knowing.coverage, lengths=lengths)
    )
    pipeline = TextToSound(bundle)
    prompts = ["a dog barks twice", "rain falling on a roof", "a door slams shut"]
    for auto in (None, "auto"):
        sounds = pipeline(prompts, seed=3, layered=True, duration=auto)
        for sound in sounds:
            seconds = sound.settings["duration"]
            assert seconds == pipeline.natural_duration(sound.prompt) == sound.duration
            (again,) = pipeline(sound.prompt, seed=3, layered=True, duration=seconds)
            assert np.array_equal(again.wave, sound.wave)
            assert again.metadata == sound.metadata
    # The tiny bundle's default, for what goes on.
    assert sounds[1].duration == 1.0
    assert sounds[0].duration > sounds[2].duration


def test_without_learned_lengths_the_default_holds(pipeline: TextToSound) -> None:
    for prompt in ("a dog barks", "rain, then a dog barks twice"):
        assert pipeline.natural_duration(prompt) == 1.0
    assert pipeline.natural_duration("rain for 3 seconds") == 3.0
