"""File names for sounds."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

FORMATS = ("wav", "flac", "ogg", "mp3")


def layer_paths(path: Path, count: int) -> list[Path]:
    """Where the layers of the scene at `path` go: x.wav has x-layer1.wav, x-layer2.wav, …"""
    return [path.with_stem(f"{path.stem}-layer{number}") for number in range(1, count + 1)]


def slug(prompt: str, limit: int = 48) -> str:
    """A file name's stem: ASCII letters, digits and dashes, cut at a word."""
    plain = unicodedata.normalize("NFKD", prompt).encode("ascii", "ignore").decode()
    words = re.findall(r"[a-z0-9]+", plain.lower())
    name = ""
    for word in words:
        longer = f"{name}-{word}" if name else word[:limit]
        if len(longer) > limit:
            break
        name = longer
    return name or "sound"
