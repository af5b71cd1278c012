"""A prepared folder: random access to its clips, their tokens and their text features."""

from __future__ import annotations

import io
from collections.abc import Collection
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import torch

from diffsound.audio.io import read_audio
from diffsound.audio.mel import MelFrontEnd
from diffsound.data.index import (
    ClipsIndex,
    Members,
    ShardInfo,
    TextIndex,
    TokensIndex,
    read_fields,
    read_index,
    read_sidecar,
    read_span,
)
from diffsound.data.record import AudioLocation, Record
from diffsound.errors import DataError
from diffsound.files import sha256
from diffsound.text.features import TextFeatures

InfoT = TypeVar("InfoT", TokensIndex, TextIndex)


class PreparedData:
    """The clips of a prepared folder by position 0..len-1. Cheap to pickle to other processes."""

    def __init__(
        self,
        folder: Path,
        index: ClipsIndex,
        records: list[Record],
        members: list[dict[str, tuple[int, int]]],
    ) -> None:
        self.folder = folder
        self.index = index
        self.records = records
        self._members = members
        self._positions = {record.id: i for i, record in enumerate(records)}
        self._front_end: MelFrontEnd | None = None

    @classmethod
    def open(cls, folder: str | Path) -> PreparedData:
        """Open a folder made by `diffsound data prepare`."""
        folder = Path(folder)
        index = read_index(ClipsIndex, folder)
        if index is None:
            raise DataError(
                f"{folder} is not a prepared folder (no index.json); "
                "make one with: diffsound data prepare SOURCE --out DIR"
            )
        if not index.complete:
            raise DataError(
                f"the preparation of {folder} was interrupted; run the same command again to finish"
            )
        records: list[Record] = []
        members: list[dict[str, tuple[int, int]]] = []
        for shard in index.shards:
            path = folder / shard.name
            for spans in shard_members(folder, shard).values():
                fields = read_fields(path, spans["json"])
                location = AudioLocation(
                    str(path), member=f"{fields['id']}.flac", span=spans["flac"]
                )
                records.append(Record.from_json(fields, location))
                members.append(spans)
        return cls(folder, index, records, members)

    def __len__(self) -> int:
        return len(self.records)

    def position(self, clip_id: str) -> int:
        """The position of a clip by its id."""
        try:
            return self._positions[clip_id]
        except KeyError:
            raise DataError(f"{self.folder} holds no clip '{clip_id}'") from None

    def wave(self, i: int) -> np.ndarray:
        """The clip's samples, float32 [samples], at the folder's sample rate."""
        return read_audio(io.BytesIO(self.encoded(i)), sample_rate=self.index.mel.sample_rate)

    def encoded(self, i: int) -> bytes:
        """The clip's FLAC file as stored."""
        return read_span(self.records[i].audio.path, self._members[i]["flac"])

    def details(self, i: int) -> dict[str, object]:
        """The clip's whole JSON; `preparation` says what was done to it."""
        return read_fields(self.records[i].audio.path, self._members[i]["json"])

    def mel(self, i: int) -> np.ndarray:
        """The clip's mel, float32 [n_mels, L] in [0, 1]; computed if it is not stored."""
        span = self._members[i].get("mel.npy")
        if span is not None:
            content = read_span(self.records[i].audio.path, span)
            return np.load(io.BytesIO(content), allow_pickle=False).astype(np.float32)
        if self._front_end is None:
            self._front_end = MelFrontEnd(self.index.mel)
        with torch.inference_mode():
            mel = self._front_end(torch.from_numpy(self.wave(i))[None])[0]
        return mel.numpy()

    def tokens(self, fingerprint: str | None = None) -> TokenData:
        """The clips' tokens under a codec; without a fingerprint, the only ones there are."""
        folder = _variant_folder(self.folder / "tokens", fingerprint, "tokenize")
        return TokenData(self, folder, _complete_index(TokensIndex, folder, "tokenize"))

    def text(self, fingerprint: str | None = None) -> TextData:
        """The captions' features under a text encoder; without a fingerprint, the only ones."""
        folder = _variant_folder(self.folder / "text", fingerprint, "encode-text")
        return TextData(self, folder, _complete_index(TextIndex, folder, "encode-text"))

    def where(
        self,
        *,
        split: str | None = None,
        labels: Collection[str] | None = None,
        licences: Collection[str] | None = None,
        source: str | None = None,
    ) -> list[int]:
        """Positions of the clips that meet every given condition (labels: any of them)."""
        wanted = None if labels is None else set(labels)
        return [
            i
            for i, record in enumerate(self.records)
            if (split is None or record.split == split)
            and (wanted is None or not wanted.isdisjoint(record.labels))
            and (licences is None or record.licence in licences)
            and (source is None or record.source == source)
        ]

    def verify(self) -> None:
        """Compare every shard with its checksum; a damaged one is named."""
        verify_shards(self.folder, self.index.shards)


class _Derived(Generic[InfoT]):
    """Per-clip files in shards that correspond to the clips' shards."""

    def __init__(self, data: PreparedData, folder: Path, info: InfoT, suffix: str) -> None:
        self.folder = folder
        self.info: InfoT = info
        self._data = data
        self._where: dict[str, tuple[str, tuple[int, int]]] = {}
        for shard in info.shards:
            for key, spans in shard_members(folder, shard).items():
                self._where[key] = (str(folder / shard.name), spans[suffix])

    def _read(self, i: int) -> bytes:
        clip_id = self._data.records[i].id
        try:
            path, span = self._where[clip_id]
        except KeyError:
            raise DataError(
                f"{self.folder} has nothing for the clip '{clip_id}'; run the command that made "
                "it again"
            ) from None
        return read_span(path, span)

    def verify(self) -> None:
        """Compare every shard with its checksum; a damaged one is named."""
        verify_shards(self.folder, self.info.shards)


class TokenData(_Derived[TokensIndex]):
    """Tokens by clip position."""

    def __init__(self, data: PreparedData, folder: Path, info: TokensIndex) -> None:
        super().__init__(data, folder, info, "npy")

    def of(self, i: int) -> np.ndarray:
        """The clip's tokens, uint16 [variants, F', L']."""
        return np.asarray(np.load(io.BytesIO(self._read(i)), allow_pickle=False))


class TextData(_Derived[TextIndex]):
    """Text features by clip position."""

    def __init__(self, data: PreparedData, folder: Path, info: TextIndex) -> None:
        super().__init__(data, folder, info, "npz")

    def of(self, i: int) -> TextFeatures:
        """The features of the clip's captions, in their order: a batch [captions, S, D]."""
        with np.load(io.BytesIO(self._read(i)), allow_pickle=False) as arrays:
            features, lengths, pooled = (arrays[name] for name in ("features", "lengths", "pooled"))
        texts = torch.split(torch.from_numpy(features.astype(np.float32)), lengths.tolist())
        padded = torch.nn.utils.rnn.pad_sequence(list(texts), batch_first=True)
        mask = torch.arange(padded.shape[1])[None] < torch.from_numpy(lengths)[:, None]
        return TextFeatures(padded, mask, torch.from_numpy(pooled.astype(np.float32)))


def shard_members(folder: Path, shard: ShardInfo) -> Members:
    """Where the shard's members lie, from its sidecar."""
    sidecar = read_sidecar(folder / shard.name)
    if sidecar is None or sidecar.get("sha256") != shard.sha256:
        raise DataError(
            f"{folder / shard.name} is missing, truncated or not the one of the index; "
            "run the command that made it again"
        )
    return {
        key: {suffix: (int(span[0]), int(span[1])) for suffix, span in spans.items()}
        for key, spans in sidecar["members"].items()
    }


def verify_shards(folder: Path, shards: Collection[ShardInfo]) -> None:
    """Recompute checksums; the first shard that differs is named."""
    for shard in shards:
        try:
            found = sha256(folder / shard.name)
        except OSError as error:
            raise DataError(
                f"cannot read {folder / shard.name}: {error.strerror or error}"
            ) from error
        if found != shard.sha256:
            raise DataError(
                f"{folder / shard.name} is damaged: it does not match its checksum; "
                "delete it and run the command that made it again"
            )


def _variant_folder(parent: Path, fingerprint: str | None, command: str) -> Path:
    found = sorted(path.name for path in parent.iterdir()) if parent.is_dir() else []
    if fingerprint is not None and fingerprint in found:
        return parent / fingerprint
    if fingerprint is None and len(found) == 1:
        return parent / found[0]
    if found:
        wanted = f"'{fingerprint}' is not among" if fingerprint else "choose one of"
        raise DataError(f"{parent}: {wanted} {', '.join(found)}")
    raise DataError(f"{parent} does not exist; make it with: diffsound data {command}")


def _complete_index(model: type[InfoT], folder: Path, command: str) -> InfoT:
    index = read_index(model, folder)
    if index is None or not index.complete:
        raise DataError(f"{folder} is not finished; run diffsound data {command} again")
    return index
