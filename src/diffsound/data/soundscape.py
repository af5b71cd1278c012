"""Scenes of several events, mixed from single clips, with true captions and a known timeline.

    mixer = SceneMixer(data, data.where(split="train"))
    scene = mixer.scene(np.random.default_rng(7))
    scene.wave, scene.captions, scene.events

First the shape is drawn: the number of events, which of them overlap, the background. Then clips
are placed accordingly, and only then is the scene described, so that captions are true.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from pydantic import Field, model_validator

from diffsound.audio import mixing
from diffsound.config import Config
from diffsound.data.clip import PreparedClip, PrepareSettings, to_int16
from diffsound.data.datasets import ClipData, change_speed, draw_speed
from diffsound.data.loaders import item_rng
from diffsound.data.prepare import write_clips
from diffsound.data.record import AudioLocation, Record, combined_licence
from diffsound.data.shards import ClipsIndex, PreparedData
from diffsound.data.soundscape_text import Heard, Outline, captions_of
from diffsound.errors import ConfigError, DataError

MIN_GAP = 0.1  # seconds between moments: enough to be heard as "then"
ATTEMPTS = 64  # draws before the mixer gives up looking for a clip that fits


class SceneConfig(Config):
    """How scenes are composed. Ranges are uniform; probabilities are per event or scene."""

    seconds: float = Field(default=10.0, gt=0.5)
    events: tuple[int, int] = (1, 4)
    background: float = Field(default=0.5, ge=0, le=1)  # of scenes with two events or more
    together: float = Field(default=0.35, ge=0, le=1)  # that an event gets a simultaneous one
    distance: float = Field(default=0.15, ge=0, le=1)
    repetition: float = Field(default=0.2, ge=0, le=1)
    snr_db: tuple[float, float] = (3.0, 15.0)  # of an event over the background
    spread_db: tuple[float, float] = (-9.0, 0.0)  # of events' levels where there is no background
    level_db: tuple[float, float] = (-26.0, -16.0)  # RMS of the loudest event, dBFS
    distance_db: float = Field(default=12.0, ge=0)
    max_gap: float = Field(default=1.5, ge=MIN_GAP)  # seconds of pause between moments
    fade: tuple[float, float] = (0.005, 0.05)  # seconds, where a clip was cut, and at its end
    background_fade: tuple[float, float] = (0.01, 0.5)
    speed: float = Field(default=0.04, ge=0, le=0.5)
    temperature: float = Field(default=2.0, ge=1)  # of class balance, n_c^(1/temperature)
    captions: int = Field(default=4, ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> SceneConfig:
        for name, value in self:
            if isinstance(value, tuple) and value[0] > value[1]:
                raise ValueError(f"{name} must go from low to high")
        if self.events[0] < 1 or self.events[1] > 4:
            raise ValueError("events must lie within 1 and 4")
        return self


@dataclass(frozen=True)
class Event:
    """Ground truth of one event; times are seconds of the scene.

    occurrences: (onset, offset) of every repetition; onset and offset span them all.
    gain_db:     from the stored clip to the clip in the scene (of repetitions: the first).
    snr_db:      level relative to the background; None without one and for the background itself.
    moment:      events of one moment overlap, a later moment starts after an earlier one has ended;
                 -1 for the background.
    """

    clip: str
    label: str
    onset: float
    offset: float
    occurrences: tuple[tuple[float, float], ...]
    gain_db: float
    snr_db: float | None
    moment: int
    background: bool = False
    distant: bool = False
    repeated: bool = False


@dataclass(frozen=True)
class Scene:
    """A mixed scene: float32 [samples], its captions and its events.

    clips: positions of the clips used, in the order of `events`.
    """

    wave: np.ndarray
    captions: tuple[str, ...]
    events: tuple[Event, ...]
    clips: tuple[int, ...]


@dataclass
class _Voice:
    """An event before it is placed: its sound at unit level, and its relative level."""

    clip: int
    wave: np.ndarray
    unit: float  # factor from the stored clip to `wave`
    level_db: float
    spans: list[tuple[int, int]]
    distant: bool = False
    repeated: bool = False
    start: int = 0


class SceneMixer:
    """Composes scenes; `scene(rng)` is a pure function of the generator's state."""

    def __init__(
        self,
        data: ClipData,
        indices: Sequence[int],
        config: SceneConfig | None = None,
        *,
        sample_rate: int = 22050,
    ) -> None:
        self.data = data
        self.config = config or SceneConfig()
        self.rate = sample_rate
        # A mix is a derivative work, which these licences forbid.
        self.indices = [int(i) for i in indices if not data.records[i].licence.endswith("-nd")]
        if not self.indices:
            raise DataError("no clips to mix: the selection is empty or allows no derivatives")
        self._members: dict[str, list[int]] = {}
        for i in self.indices:
            self._members.setdefault(self.label(i), []).append(i)
        self._labels = sorted(self._members)
        shares = np.array([len(self._members[label]) for label in self._labels], dtype=np.float64)
        shares **= 1.0 / self.config.temperature
        self._shares = shares / shares.sum()
        self._textures: dict[int, bool] = {}

    def label(self, clip: int) -> str:
        """What distinguishes a clip in a scene: its label, else its first caption, else its id."""
        record = self.data.records[clip]
        return next(iter((*record.labels, *record.captions, record.id)))

    def scene(self, rng: np.random.Generator) -> Scene:
        """Draw, place, mix and describe one scene."""
        config = self.config
        samples = round(config.seconds * self.rate)
        count = int(rng.integers(config.events[0], config.events[1] + 1))
        count = min(count, len(self._labels))
        used: set[str] = set()
        background = None
        if count >= 2 and rng.random() < config.background:
            background = self._background(samples, used, rng)
        shape = self._shape(count - (background is not None), rng)
        room = (samples - int(MIN_GAP * self.rate) * (len(shape) - 1)) // len(shape)
        moments = [
            [self._voice(room, background is not None, used, rng) for _ in range(size)]
            for size in shape
        ]
        self._place(moments, samples, rng)
        placed = [(voice, number) for number, moment in enumerate(moments) for voice in moment]
        placed += [(background, -1)] if background else []
        wave, gains = self._mix([voice for voice, _ in placed], samples, rng)
        events = tuple(
            self._event(voice, number, gain, bool(background))
            for (voice, number), gain in zip(placed, gains, strict=True)
        )
        outline = Outline(
            tuple(tuple(self._heard(voice) for voice in moment) for moment in moments),
            self._heard(background) if background else None,
        )
        captions = captions_of(outline, config.captions, rng)
        return Scene(wave, captions, events, tuple(voice.clip for voice, _ in placed))

    def _shape(self, count: int, rng: np.random.Generator) -> list[int]:
        """The number of events of each moment; no more moments than can be told apart."""
        most = max(1, int(self.config.seconds / 1.5))
        shape: list[int] = []
        while count and len(shape) < most:
            size = 2 if count >= 2 and rng.random() < self.config.together else 1
            shape.append(size)
            count -= size
        return shape

    def _clip(self, used: set[str], rng: np.random.Generator) -> int:
        """A clip whose label is not in the scene yet."""
        while True:  # terminates: a scene has no more events than there are labels
            label = self._labels[int(rng.choice(len(self._labels), p=self._shares))]
            if label not in used:
                return int(rng.choice(self._members[label]))

    def _background(self, samples: int, used: set[str], rng: np.random.Generator) -> _Voice | None:
        """A texture as long as the scene; None if the data seems to have none."""
        for _ in range(ATTEMPTS):
            clip = self._clip(used, rng)
            wave: np.ndarray | None = None
            if clip not in self._textures:
                wave = self.data.wave(clip)
                self._textures[clip] = mixing.is_texture(wave, self.rate)
            if self._textures[clip]:
                used.add(self.label(clip))
                wave = self.data.wave(clip) if wave is None else wave
                bed = mixing.lasting(wave, samples, self.rate // 2, rng)
                unit = 1.0 / max(mixing.rms(bed), mixing.SILENT)
                ramp = int(rng.uniform(*self.config.background_fade) * self.rate)
                bed = mixing.fade(bed, ramp, ramp) * np.float32(unit)
                return _Voice(clip, bed, unit, 0.0, [(0, samples)])
        return None

    def _voice(
        self, room: int, over_background: bool, used: set[str], rng: np.random.Generator
    ) -> _Voice:
        """A foreground event that fits into `room` samples."""
        config = self.config
        for _ in range(ATTEMPTS):
            clip = self._clip(used, rng)
            wave = self.data.wave(clip)
            span = mixing.active_span(wave, self.rate)
            if span is not None:
                break
        else:
            raise DataError(f"no audible clip among {ATTEMPTS} drawn: is the data silent?")
        used.add(self.label(clip))
        wave = wave[span[0] : span[1]]
        if config.speed:
            wave = change_speed(wave, draw_speed(config.speed, rng))
        far = bool(rng.random() < config.distance)
        tail = min(int(mixing.TAIL * self.rate), room // 4) if far else 0
        cut = mixing.loudest_start(wave, room - tail)
        ramp = int(rng.uniform(*config.fade) * self.rate)
        # An attack that was not cut stays sharp.
        wave = mixing.fade(wave[cut : cut + room - tail], ramp if cut else 0, ramp)
        starts = self._repetitions(len(wave), room - tail, rng)
        # The tail of a repetition may overlap the next; it then ends where that one starts.
        limits = [*starts[1:], starts[-1] + len(wave) + tail]
        spans = [
            (int(at), int(min(at + len(wave) + tail, limit)))
            for at, limit in zip(starts, limits, strict=True)
        ]
        jitter = mixing.decibels(1.0) ** np.concatenate(
            [[0.0], rng.uniform(-1, 1, len(starts) - 1)]
        )
        wave = mixing.repeated(wave, starts, jitter)
        if far:
            wave = mixing.distant(wave, self.rate, tail, rng)
        unit = 1.0 / max(mixing.active_rms(wave, self.rate), mixing.SILENT)
        level_db = float(rng.uniform(*(config.snr_db if over_background else config.spread_db)))
        if far:
            level_db -= config.distance_db
            # Far away, but audible over the background that the caption mentions.
            level_db = max(level_db, 0.0) if over_background else level_db
        return _Voice(clip, wave * np.float32(unit), unit, level_db, spans, far, len(starts) > 1)

    def _repetitions(self, length: int, room: int, rng: np.random.Generator) -> np.ndarray:
        """Where the copies of an event start: one copy, or by chance two to four if they fit."""
        if rng.random() >= self.config.repetition:
            return np.zeros(1, dtype=np.int64)
        times = int(rng.integers(2, 5))
        gaps = (rng.uniform(MIN_GAP, 0.5, times) * self.rate).astype(np.int64)
        starts = np.concatenate([[0], np.cumsum(length + gaps)[:-1]])
        fitting = starts[starts + length <= room]
        return fitting if len(fitting) else starts[:1]

    def _place(
        self, moments: Sequence[Sequence[_Voice]], samples: int, rng: np.random.Generator
    ) -> None:
        """Set the start of every voice: moments in order, simultaneous events within each other."""
        lengths = [max(len(voice.wave) for voice in moment) for moment in moments]
        gap = int(MIN_GAP * self.rate)
        slack = samples - sum(lengths) - gap * (len(moments) - 1)
        shares = rng.dirichlet(np.ones(len(moments) + 1)) * slack
        most = int(self.config.max_gap * self.rate)
        gaps = [min(gap + int(share), most) for share in shares[1:-1]]
        at = int(rng.integers(0, samples - sum(lengths) - sum(gaps) + 1))
        for moment, length, pause in zip(moments, lengths, [*gaps, 0], strict=True):
            for voice in moment:
                voice.start = at + int(rng.integers(0, length - len(voice.wave) + 1))
            at += length + pause

    def _mix(
        self, everything: Sequence[_Voice], samples: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, list[float]]:
        """The sum, and every voice's gain in dB relative to its clip."""
        loudest = max(voice.level_db for voice in everything)
        shift = float(rng.uniform(*self.config.level_db)) - loudest
        wave = np.zeros(samples, dtype=np.float32)
        for voice in everything:
            end = voice.start + len(voice.wave)
            wave[voice.start : end] += voice.wave * np.float32(
                mixing.decibels(voice.level_db + shift)
            )
        safe = mixing.keep_peak(wave)
        top = float(np.abs(wave).max(initial=0.0))
        guard = 20 * np.log10(mixing.PEAK / top) if top > mixing.PEAK else 0.0
        gains = [20 * np.log10(v.unit) + v.level_db + shift + guard for v in everything]
        return safe, [float(gain) for gain in gains]

    def _event(self, voice: _Voice, moment: int, gain: float, over_background: bool) -> Event:
        times = tuple(
            (round((voice.start + a) / self.rate, 4), round((voice.start + b) / self.rate, 4))
            for a, b in voice.spans
        )
        return Event(
            clip=self.data.records[voice.clip].id,
            label=self.label(voice.clip),
            onset=times[0][0],
            offset=times[-1][1],
            occurrences=times,
            gain_db=round(gain, 2),
            snr_db=round(voice.level_db, 2) if over_background and moment >= 0 else None,
            moment=moment,
            background=moment < 0,
            distant=voice.distant,
            repeated=voice.repeated,
        )

    def _heard(self, voice: _Voice) -> Heard:
        captions = self.data.records[voice.clip].captions
        named = captions or (f"the sound of {self.label(voice.clip)}",)
        return Heard(tuple(named), voice.distant, voice.repeated)


def scene_record(
    scene: Scene, records: Sequence[Record], scene_id: str, split: str, seconds: float
) -> Record:
    """The record of a scene: its captions, and the authors of all its clips."""
    used = [records[clip] for clip in scene.clips]
    licences = _distinct(record.licence for record in used)
    return Record(
        id=scene_id,
        audio=AudioLocation(path=""),
        captions=scene.captions,
        labels=tuple(_distinct(event.label for event in scene.events)),
        tags=("soundscape",),
        split=split,
        licence=combined_licence(licences),
        licence_stated=" + ".join(sorted(licences)),
        author="; ".join(_distinct(record.author for record in used)),
        url="; ".join(_distinct(record.url for record in used)),
        source="soundscape",
        group=scene_id,
        seconds=seconds,
    )


def write_scenes(
    data: PreparedData,
    out_dir: str | Path,
    count: int,
    *,
    seed: int = 0,
    split: str = "train",
    config: SceneConfig | None = None,
    clips_per_shard: int = 256,
) -> ClipsIndex:
    """Mix `count` scenes from the clips of one split into a prepared folder.

    Scene n is a pure function of (seed, n). Each clip's JSON holds the timeline (`events`) and the
    source, licence and author of every clip in it (`attribution`) under `preparation`.
    """
    if count < 1:
        raise ConfigError(f"write at least one scene, not {count}")
    config = config or SceneConfig()
    mel = data.index.mel
    mixer = SceneMixer(data, data.where(split=split), config, sample_rate=mel.sample_rate)

    def clips() -> Iterator[PreparedClip]:
        for number in range(count):
            scene = mixer.scene(item_rng(seed, 0, number))
            name, seconds = f"scene-{split}-{seed}-{number:06d}", len(scene.wave) / mel.sample_rate
            record = scene_record(scene, data.records, name, split, seconds)
            preparation = {
                "events": [asdict(event) for event in scene.events],
                "attribution": [_credit(data.records[clip]) for clip in scene.clips],
            }
            yield PreparedClip(record, to_int16(scene.wave), preparation)

    return write_clips(
        out_dir,
        clips(),
        PrepareSettings(mel=mel, max_seconds=config.seconds, clips_per_shard=clips_per_shard),
        source="soundscape",
        made_with={
            "scenes": config.model_dump(mode="json"),
            "scene_seed": seed,
            "scene_count": count,
            "scene_split": split,
            "scene_clips": data.index.source,
        },
    )


def _credit(record: Record) -> dict[str, str]:
    return {
        "id": record.id,
        "title": record.title,
        "author": record.author,
        "licence": record.licence_stated or record.licence,
        "url": record.url,
    }


def _distinct(values: Iterable[str]) -> list[str]:
    """The distinct non-empty values, in order."""
    return list(dict.fromkeys(value for value in values if value))
