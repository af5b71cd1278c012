"""The listening test (MOS, section VI-A): building the page and keeping what listeners say.

    build_test("mos", {"diffsound": "eval/diffsound", "ar": "eval/ar"}, texts=15)
    TEST/index.html     the whole test in one file: nobody sees which sound is whose
    TEST/key.json       which sound is whose; stays with the experimenter
    TEST/ratings/       a file per listener

Every text has the real clip and one or more sounds of each system. Sounds have names that say
nothing, lie in the page in the order of those names, and are shuffled anew for each listener.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from diffsound.audio.io import read_audio
from diffsound.config import Config, parse_config
from diffsound.errors import ConfigError, DataError, InputError
from diffsound.evaluation.media import audio_url
from diffsound.evaluation.sets import make_folder, read_examples, write_json
from diffsound.files import atomic_write

REAL = "real"
SCALES = ("relevance", "fidelity", "intelligibility")
LOUDNESS = -23.0  # LUFS; a louder sound is taken for a better one
_RATE = 22050
_NAME = re.compile(r"[0-9a-f]{8,64}")

Grade = Annotated[int, Field(ge=0, le=5)]


class Rating(Config):
    """What a listener says of a sound, 0 (bad) to 5, and when (milliseconds since 1970)."""

    relevance: Grade
    fidelity: Grade
    intelligibility: Grade
    at: Annotated[float, Field(ge=0)] = 0.0


class Ratings(Config):
    """A listener's file; `listener` is a random name that the page gave itself."""

    test: str
    listener: str
    ratings: dict[str, Rating]


class KeyEntry(Config):
    """A row of the key."""

    text: str
    system: str
    source: str


class Key(Config):
    """key.json: the sounds by the names they have in the page."""

    test: str
    loudness: float | None
    clips: dict[str, KeyEntry]

    @property
    def systems(self) -> list[str]:
        """The real clips first, then the systems as given."""
        names = dict.fromkeys(clip.system for clip in self.clips.values())
        return sorted(names, key=lambda name: (name != REAL, name))


def build_test(
    out: str | Path,
    runs: Mapping[str, str | Path],
    *,
    texts: int = 15,
    takes: int = 1,
    seed: int = 0,
    loudness: float | None = LOUDNESS,
) -> Path:
    """Write a test of systems by the folders of their evaluations; returns the page.

    texts: how many of those that all runs have are drawn. takes: sounds of each system per text.
    """
    if not runs or REAL in runs or texts < 1 or takes < 1:
        raise InputError(f"a test needs texts, takes and systems that are not named '{REAL}'")
    out = Path(out)
    if (out / "key.json").exists():
        raise InputError(f"{out} already holds a test; ratings belong to it, choose another folder")
    captions = _common_texts(runs)
    chosen = np.random.default_rng(seed).permutation(sorted(captions))[:texts].tolist()
    first = Path(next(iter(runs.values())))
    key: dict[str, KeyEntry] = {}
    sounds: dict[str, dict[str, str]] = {}
    for clip_id in chosen:
        sources = [(REAL, first / "real" / f"{clip_id}.wav")]
        for system, folder in runs.items():
            sources += [
                (system, Path(folder) / "generated" / f"{clip_id}.{n}.wav") for n in range(takes)
            ]
        for system, path in sources:
            name = secrets.token_hex(8)
            key[name] = KeyEntry(text=clip_id, system=system, source=path.name)
            url = audio_url(read_audio(path, _RATE), _RATE, loudness=loudness)
            sounds[name] = {"text": clip_id, "url": url}
    test = secrets.token_hex(8)
    make_folder(out / "ratings")
    page = _page(test, {clip_id: captions[clip_id] for clip_id in chosen}, sounds)
    target = out / "index.html"
    with atomic_write(target) as temporary:
        temporary.write_text(page, encoding="utf-8")
    content = Key(test=test, loudness=loudness, clips=key)
    write_json(out / "key.json", content.model_dump(mode="json"))
    return target


def read_key(folder: str | Path) -> Key:
    """The key of a test."""
    path = Path(folder) / "key.json"
    try:
        return parse_config(Key, json.loads(path.read_text(encoding="utf-8")), str(path))
    except FileNotFoundError:
        raise DataError(
            f"{folder} holds no listening test (no key.json); make one with: "
            "diffsound evaluate listen build"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def parse_ratings(content: bytes, key: Key) -> Ratings:
    """What a page sent, checked against the test."""
    try:
        ratings = parse_config(Ratings, json.loads(content), "ratings")
    except (ConfigError, UnicodeDecodeError, ValueError) as error:
        raise InputError(f"these are no ratings: {' '.join(str(error).split())[:200]}") from error
    if not _NAME.fullmatch(ratings.listener):
        raise InputError("a listener's name is 8 to 64 hexadecimal digits")
    if ratings.test != key.test:
        raise InputError("these ratings belong to another test; reload the page")
    unknown = next((name for name in ratings.ratings if name not in key.clips), None)
    if unknown is not None:
        raise InputError(f"the test has no sound '{unknown[:40]}'")
    return ratings


def keep_ratings(folder: str | Path, ratings: Ratings) -> Ratings:
    """Join ratings to the listener's file, of two for one sound the later; returns the file's."""
    path = Path(folder) / "ratings" / f"{ratings.listener}.json"
    joined = dict(ratings.ratings)
    if path.exists():
        before = Ratings.model_validate_json(path.read_bytes())
        for name, rating in before.ratings.items():
            if name not in joined or joined[name].at < rating.at:
                joined[name] = rating
    result = ratings.model_copy(update={"ratings": joined})
    write_json(path, result.model_dump(mode="json"))
    return result


def read_ratings(folder: str | Path) -> tuple[list[Ratings], dict[str, str]]:
    """All listeners' ratings, and the files that cannot be used with the reason."""
    key = read_key(folder)
    found, failed = [], {}
    for path in sorted((Path(folder) / "ratings").glob("*.json")):
        try:
            found.append(parse_ratings(path.read_bytes(), key))
        except InputError as error:
            failed[path.name] = str(error)
    return found, failed


def _common_texts(runs: Mapping[str, str | Path]) -> dict[str, str]:
    """Captions by clip id, of the clips every run has under the same caption."""
    tables = [{e.id: e.caption for e in read_examples(folder)} for folder in runs.values()]
    common = set.intersection(*(set(table.items()) for table in tables))
    if not common:
        raise InputError("these evaluations share no text; evaluate all on the same data and seed")
    return dict(common)


def _page(test: str, captions: Mapping[str, str], sounds: Mapping[str, Mapping[str, str]]) -> str:
    """The assets joined into one file, with the test as JSON inside."""
    folder = resources.files("diffsound.evaluation") / "listening_page"
    page, style, script = (
        (folder / name).read_text(encoding="utf-8") for name in ("page.html", "page.css", "page.js")
    )
    # Texts get names of their own: a clip's id may tell where the clip is from.
    numbers: Sequence[str] = sorted(captions)
    content: dict[str, Any] = {
        "test": test,
        "scales": SCALES,
        "texts": [captions[clip_id] for clip_id in numbers],
        "sounds": [
            {"name": name, "text": numbers.index(sound["text"]), "url": sound["url"]}
            for name, sound in sorted(sounds.items())
        ],
    }
    # "</" would end the script element, wherever it stands in it.
    data = json.dumps(content, ensure_ascii=False).replace("</", "<\\/")
    parts = {"STYLE": style, "SCRIPT": script, "DATA": data}
    return re.sub(r"@@(STYLE|SCRIPT|DATA)@@", lambda found: parts[found[1]], page)
