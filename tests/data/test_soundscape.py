"""Mixed scenes: what the timeline says is what is in the wave."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from data_support import MemoryClips
from diffsound.audio import mixing
from diffsound.audio.mixing import rms
from diffsound.config import parse_config
from diffsound.data.record import AudioLocation, Record, combined_licence
from diffsound.data.soundscape import (
    SceneConfig,
    SceneMixer,
    scene_record,
)
from diffsound.errors import ConfigError, DataError

RATE = 8000
# Every clip is a tone of its own pitch, so that a spectrum tells who sounds when.
PITCHES = {"beep": 500, "hoot": 900, "chime": 1300, "ping": 1700, "buzz": 2300, "hum": 3100}
LONG = {"buzz": 4.0, "hum": 3.0}


def tone(label: str) -> np.ndarray:
    time = np.arange(int(RATE * LONG.get(label, 0.4))) / RATE
    envelope = 1.0 if label in LONG else np.exp(-3 * time)
    silence = np.zeros(RATE // 10)
    return np.concatenate([silence, 0.2 * envelope * np.sin(2 * np.pi * PITCHES[label] * time)])


def record(label: str, **fields: str) -> Record:
    return Record(
        id=f"{label}-1",
        audio=AudioLocation(""),
        captions=(f"a {label} sounds",),
        labels=(label,),
        licence=fields.get("licence", "cc0"),
        author=fields.get("author", f"maker of {label}"),
        url=f"https://example.org/{label}",
    )


@pytest.fixture(scope="module")
def data() -> MemoryClips:
    return MemoryClips(
        [tone(label) for label in PITCHES],
        records=[record(label) for label in PITCHES],
        sample_rate=RATE,
    )


def mixer(data: MemoryClips, **config) -> SceneMixer:
    # Without changes of speed a clip keeps its pitch.
    settings = SceneConfig(**{"seconds": 6.0, "speed": 0.0, **config})
    return SceneMixer(data, range(len(data)), settings, sample_rate=RATE)


def scenes(data: MemoryClips, count: int = 60, **config):
    mix = mixer(data, **config)
    return [mix.scene(np.random.default_rng([4, i])) for i in range(count)]


def energy(wave: np.ndarray, label: str) -> np.ndarray:
    """Energy of a label's pitch in frames of 20 ms."""
    frames = wave[: len(wave) // 160 * 160].reshape(-1, 160) * np.hanning(160)
    probe = np.exp(-2j * np.pi * PITCHES[label] * np.arange(160) / RATE)
    return np.abs(frames @ probe) ** 2


def test_a_scene_depends_on_its_generator_only(data) -> None:
    one, two = (mixer(data).scene(np.random.default_rng(9)) for _ in range(2))
    used = mixer(data)
    used.scene(np.random.default_rng(1))  # what was mixed before must not matter
    three = used.scene(np.random.default_rng(9))
    for other in (two, three):
        assert np.array_equal(one.wave, other.wave)
        assert one.captions == other.captions
        assert one.events == other.events
    assert not np.array_equal(one.wave, mixer(data).scene(np.random.default_rng(8)).wave)


def test_scenes_are_well_formed_and_varied(data) -> None:
    made = scenes(data)
    for scene in made:
        assert scene.wave.shape == (6 * RATE,)
        assert scene.wave.dtype == np.float32
        assert np.abs(scene.wave).max() <= 0.9901
        assert 1 <= len(scene.events) <= 4
        assert len({event.label for event in scene.events}) == len(scene.events)
        for event in scene.events:
            assert 0 <= event.onset < event.offset <= 6.0
            assert all(event.label in caption for caption in scene.captions)
    events = [event for scene in made for event in scene.events]
    assert {len(scene.events) for scene in made} == {1, 2, 3, 4}
    for flag in ("background", "distant", "repeated"):
        assert any(getattr(event, flag) for event in events)


def test_the_timeline_matches_the_sound(data) -> None:
    for scene in scenes(data, 40, background=0.0, distance=0.0):
        for event in scene.events:
            level = energy(scene.wave, event.label)
            times = np.arange(len(level)) * 0.02
            within = np.zeros(len(level), dtype=bool)
            for onset, offset in event.occurrences:
                within |= (times > onset - 0.03) & (times < offset + 0.01)
            others = np.zeros(len(level), dtype=bool)
            for other in scene.events:
                if other is not event:
                    others |= (times > other.onset - 0.05) & (times < other.offset + 0.05)
            assert level[within].max() > 1e-3
            assert level[~within & ~others].max(initial=0.0) < 1e-3 * level[within].max()


def test_moments_follow_each_other_and_companions_overlap(data) -> None:
    followed = together = 0
    for scene in scenes(data, 80, background=0.3):
        foreground = [event for event in scene.events if not event.background]
        for one in foreground:
            for two in foreground:
                if one.moment < two.moment:
                    assert two.onset >= one.offset + 0.09
                    followed += 1
                elif one is not two and one.moment == two.moment:
                    overlap = min(one.offset, two.offset) - max(one.onset, two.onset)
                    shorter = min(one.offset - one.onset, two.offset - two.onset)
                    assert overlap >= 0.99 * shorter
                    together += 1
    assert followed > 20
    assert together > 10


def test_repetitions_are_two_to_four_and_apart(data) -> None:
    repeated = [e for s in scenes(data, 60, repetition=1.0) for e in s.events if e.repeated]
    assert {len(event.occurrences) for event in repeated} == {2, 3, 4}
    for event in repeated:
        for (_, end), (start, _) in zip(event.occurrences, event.occurrences[1:], strict=False):
            assert end <= start + 1e-9


def test_snr_is_the_ratio_in_the_wave(data) -> None:
    checked = 0
    for scene in scenes(data, 40, background=1.0, distance=0.0, repetition=0.0, together=0.0):
        bed = next((event for event in scene.events if event.background), None)
        if bed is None:
            continue
        for event in scene.events:
            if event.background or event.label not in LONG:
                continue
            level, under = energy(scene.wave, event.label), energy(scene.wave, bed.label)
            span = slice(int(event.onset * 50) + 3, int(event.offset * 50) - 3)
            measured = 10 * np.log10(level[span].mean() / under[span].mean())
            assert measured == pytest.approx(event.snr_db, abs=1.0)
            assert 3.0 <= event.snr_db <= 15.0
            checked += 1
    assert checked > 5


def test_the_gain_is_from_stored_clip_to_scene(data) -> None:
    alone = scenes(data, 40, events=(1, 1), distance=0.0, repetition=0.0)
    peaks = [scene for scene in alone if scene.events[0].label in LONG]
    assert len(peaks) > 5
    for scene in peaks:
        (event,), (clip,) = scene.events, scene.clips
        stored = np.abs(data.wave(clip)).max()
        gain = 20 * np.log10(np.abs(scene.wave).max() / stored)
        assert gain == pytest.approx(event.gain_db, abs=0.05)


def test_distance_lowers_high_frequencies_and_adds_a_tail() -> None:
    rng = np.random.default_rng(0)
    click = np.zeros(800, np.float32)
    click[:400] = rng.standard_normal(400)
    far = mixing.distant(click, RATE, 3200, rng, cutoff=800.0)
    assert len(far) == 4000
    spectrum = np.abs(np.fft.rfft(far)) / np.abs(np.fft.rfft(click, 4000)).mean()
    hertz = np.fft.rfftfreq(4000, 1 / RATE)
    assert spectrum[hertz < 400].mean() > 8 * spectrum[hertz > 3000].mean()
    assert rms(far[800:2000]) > 10 * rms(far[3300:4000]) > 0


def test_distant_events_are_quieter_but_not_below_the_background(data) -> None:
    made = scenes(data, 60, distance=0.5, background=0.5)
    for event in (event for scene in made for event in scene.events if event.distant):
        assert event.snr_db is None or 0.0 <= event.snr_db <= 3.0
    level = {True: [], False: []}
    for scene in made:
        for event, clip in zip(scene.events, scene.clips, strict=True):
            if event.snr_db is None and not event.background and len(scene.events) > 1:
                level[event.distant].append(
                    event.gain_db + 20 * np.log10(mixing.active_rms(data.wave(clip), RATE))
                )
    assert np.mean(level[True]) < np.mean(level[False]) - 5


def test_background_lasts_without_gaps() -> None:
    noise = np.random.default_rng(0).standard_normal(2 * RATE).astype(np.float32)
    for seed in range(10):
        bed = mixing.lasting(noise, 9 * RATE, RATE // 2, np.random.default_rng(seed))
        assert bed.shape == (9 * RATE,)
        levels = mixing.frame_rms(bed, RATE // 10)
        assert levels.min() > 0.85
        assert levels.max() < 1.15


def test_textures_are_distinguished_from_events() -> None:
    rng = np.random.default_rng(0)
    hiss = 0.1 * rng.standard_normal(3 * RATE)
    bursts = hiss * (np.arange(3 * RATE) % RATE < RATE // 5)
    assert mixing.is_texture(hiss, RATE)
    assert not mixing.is_texture(bursts, RATE)
    assert not mixing.is_texture(hiss[:RATE], RATE)
    assert not mixing.is_texture(np.zeros(3 * RATE), RATE)


def test_active_span_and_loudest_start_find_the_sound() -> None:
    wave = np.zeros(RATE, np.float32)
    wave[2000:3000] = 0.5
    span = mixing.active_span(wave, RATE)
    assert span is not None
    assert 1840 <= span[0] <= 2000
    assert 3000 <= span[1] <= 3160
    assert mixing.active_span(np.zeros(100), RATE) is None
    assert mixing.loudest_start(wave, 1000) == 2000
    assert mixing.loudest_start(wave, RATE) == 0
    assert mixing.active_rms(wave, RATE) == pytest.approx(0.5, rel=0.1)


def test_licences_that_forbid_derivatives_are_left_out(data) -> None:
    records = [replace(r, licence="cc-by-nd") for r in data.records[:3]] + data.records[3:]
    partly = MemoryClips([data.wave(i) for i in range(6)], records=records, sample_rate=RATE)
    used = {event.label for scene in scenes(partly, 20) for event in scene.events}
    assert used == set(list(PITCHES)[3:])
    with pytest.raises(DataError, match="allows no derivatives"):
        SceneMixer(partly, [0, 1, 2])


@pytest.mark.parametrize(
    ("licences", "result"),
    [
        (["cc0"], "cc0"),
        (["cc0", "cc-by", "bsd"], "cc-by"),
        (["cc-by-nc", "cc0"], "cc-by-nc"),
        (["cc-by-nc", "cc-by-sa"], "cc-by-nc-sa"),
        (["cc-by", "unknown"], "unknown"),
        (["cc-by", "something new"], "unknown"),
        ([], "unknown"),
    ],
)
def test_a_mix_is_under_the_most_demanding_licence(licences, result) -> None:
    assert combined_licence(licences) == result


def test_attribution_is_carried_through(data) -> None:
    scene = next(s for s in scenes(data, 20) if len(s.events) == 3)
    made = scene_record(scene, data.records, "scene-0", "train", 6.0)
    for event in scene.events:
        assert f"maker of {event.label}" in made.author
        assert f"https://example.org/{event.label}" in made.url
    assert made.captions == scene.captions
    assert set(made.labels) == {event.label for event in scene.events}


def test_unusable_settings_and_data_are_refused(data) -> None:
    with pytest.raises(ConfigError, match="snr_db must go from low to high"):
        parse_config(SceneConfig, {"snr_db": [10, 0]})
    with pytest.raises(ConfigError, match="within 1 and 4"):
        parse_config(SceneConfig, {"events": [2, 9]})
    silent = MemoryClips([np.zeros(100)], labels=[["nothing"]])
    with pytest.raises(DataError, match="no audible clip"):
        SceneMixer(silent, [0]).scene(np.random.default_rng(0))
