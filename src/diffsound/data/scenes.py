"""Scenes for training: mixed on the fly, or written once to a prepared folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsound.data.loaders import item_rng
from diffsound.data.record import AudioLocation, Record
from diffsound.data.soundscape import Scene, SceneConfig, SceneMixer
from diffsound.errors import ConfigError

if TYPE_CHECKING:
    from diffsound.data.index import ClipsIndex
    from diffsound.data.shards import PreparedData

# From the freest to the most demanding; a mix is under the most demanding of its clips' licences.
DEMANDS = (
    "cc0",
    "public-domain",
    "mit",
    "bsd",
    "apache",
    "cc-by",
    "cc-sampling+",
    "cc-by-sa",
    "lgpl",
    "gpl",
    "cc-by-nc",
    "cc-by-nc-sa",
    "unknown",
)


class SceneDataset:
    """Scenes mixed as they are asked for:

    {"wave": float32 [samples], "text": str, "id": str, "events": int}.

    `scenes` is only the length of an epoch: position and epoch seed each scene, so none returns.
    The text is one of the scene's captions; encode it with the text encoder's feature cache.
    """

    def __init__(self, mixer: SceneMixer, scenes: int) -> None:
        if scenes < 1:
            raise ConfigError(f"an epoch needs at least one scene, not {scenes}")
        self.mixer = mixer
        self.scenes = scenes

    def __len__(self) -> int:
        return self.scenes

    def item(self, index: int, rng: np.random.Generator) -> dict[str, Any]:
        """A fresh scene from the generator."""
        scene = self.mixer.scene(rng)
        text = scene.captions[int(rng.integers(len(scene.captions)))]
        return {
            "wave": scene.wave,
            "text": text,
            "id": f"scene-{index:06d}",
            "events": len(scene.events),
        }


def combined_licence(licences: Sequence[str]) -> str:
    """The licence a mix of clips is under; anything not understood makes it unknown."""
    known = set(licences)
    if any("nc" in name.split("-") for name in known) and any(
        "sa" in name.split("-") for name in known
    ):
        known.add("cc-by-nc-sa")
    if not known <= set(DEMANDS):
        return "unknown"
    return max(known, key=DEMANDS.index, default="unknown")


def scene_record(
    scene: Scene, records: Sequence[Record], scene_id: str, split: str, seconds: float
) -> Record:
    """The record of a scene: its own captions, and everyone whose clip is in it."""
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
    from diffsound.data.clip import PreparedClip, PrepareSettings, to_int16
    from diffsound.data.prepare import write_clips

    if count < 1:
        raise ConfigError(f"write at least one scene, not {count}")
    config = config or SceneConfig()
    mel = data.index.mel
    mixer = SceneMixer(data, data.where(split=split), config, sample_rate=mel.sample_rate)

    def clips() -> Iterator[PreparedClip]:
        for number in range(count):
            scene = mixer.scene(item_rng(seed, 0, number))
            scene_id = f"scene-{split}-{seed}-{number:06d}"
            yield PreparedClip(
                scene_record(
                    scene, data.records, scene_id, split, len(scene.wave) / mel.sample_rate
                ),
                to_int16(scene.wave),
                {
                    "events": [event.to_json() for event in scene.events],
                    "attribution": [_credit(data.records[clip]) for clip in scene.clips],
                },
            )

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
    """Non-empty values once each, in their order."""
    return list(dict.fromkeys(value for value in values if value))
