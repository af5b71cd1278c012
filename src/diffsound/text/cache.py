"""Encode each text once: features kept in memory and, if wanted, on disk."""

from __future__ import annotations

import hashlib
import threading
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from diffsound.errors import InputError
from diffsound.files import atomic_write
from diffsound.text.features import TextEncoder, TextFeatures


class CachedTextEncoder:
    """A text encoder that caches the features of another one.

    Entries are addressed by the encoder's fingerprint and the text, so a directory may be shared
    by encoders and processes and never needs clearing. Memory holds the `max_entries` texts used
    last; the directory, if one is given, keeps all. Features come back on the CPU. Several threads
    may call it.
    """

    def __init__(
        self,
        encoder: TextEncoder,
        directory: str | Path | None = None,
        max_entries: int = 4096,
    ) -> None:
        if max_entries < 1:
            raise InputError(f"a text cache needs room for at least one entry, not {max_entries}")
        self._encoder = encoder
        self._fingerprint = encoder.fingerprint
        self._directory = None if directory is None else Path(directory) / self._fingerprint
        self._max_entries = max_entries
        self._memory: OrderedDict[str, TextFeatures] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def dim(self) -> int:
        """D, the width of the features."""
        return self._encoder.dim

    @property
    def fingerprint(self) -> str:
        """The inner encoder's: caching changes nothing about the features."""
        return self._fingerprint

    def __call__(self, texts: Sequence[str]) -> TextFeatures:
        """Features of `texts`, encoding only those not seen before."""
        if isinstance(texts, str) or not texts:
            raise InputError("give a list of at least one text to encode")
        found: dict[str, TextFeatures] = {}
        missing: list[str] = []
        for text in dict.fromkeys(texts):
            entry = self._recall(text)
            if entry is None:
                missing.append(text)
            else:
                found[text] = entry
        if missing:
            encoded = self._encoder(missing)
            for row, text in enumerate(missing):
                found[text] = _trimmed(encoded, row)
                self._remember(text, found[text])
                self._write(text, found[text])
        return TextFeatures.cat([found[text] for text in texts])

    def _recall(self, text: str) -> TextFeatures | None:
        with self._lock:
            if text in self._memory:
                self._memory.move_to_end(text)
                return self._memory[text]
        entry = self._read(text)
        if entry is not None:
            self._remember(text, entry)
        return entry

    def _remember(self, text: str, entry: TextFeatures) -> None:
        with self._lock:
            self._memory[text] = entry
            self._memory.move_to_end(text)
            while len(self._memory) > self._max_entries:
                self._memory.popitem(last=False)

    def _path(self, text: str) -> Path | None:
        if self._directory is None:
            return None
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        # Two levels, because a folder of a million files is slow to open on many file systems.
        return self._directory / digest[:2] / f"{digest}.safetensors"

    def _read(self, text: str) -> TextFeatures | None:
        """The entry on disk, or None if there is none or it is damaged (it is made again)."""
        path = self._path(text)
        if path is None or not path.is_file():
            return None
        try:
            stored = load_file(path)
            features, pooled = stored["features"], stored["pooled"]
        except (OSError, SafetensorError, KeyError):
            return None
        if features.ndim != 2 or features.shape[1] != self.dim or pooled.shape != (self.dim,):
            return None
        return TextFeatures(
            features[None], torch.ones(1, len(features), dtype=torch.bool), pooled[None]
        )

    def _write(self, text: str, entry: TextFeatures) -> None:
        path = self._path(text)
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as temporary:
                save_file(
                    {
                        "features": entry.features[0],
                        "pooled": entry.pooled[0],
                    },
                    temporary,
                )
        # The features are there all the same, so a full or read-only disk must not stop the work.
        except (OSError, SafetensorError) as error:
            warnings.warn(f"the text cache {self._directory} takes no more: {error}", stacklevel=3)
            self._directory = None


def _trimmed(batch: TextFeatures, row: int) -> TextFeatures:
    """One text without its padding, owning its memory, on the CPU: [1, S', D]."""
    length = int(batch.mask[row].sum())
    return TextFeatures(
        batch.features[row : row + 1, :length].clone(),
        batch.mask[row : row + 1, :length].clone(),
        batch.pooled[row : row + 1].clone(),
    ).to("cpu")
