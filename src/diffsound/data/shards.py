"""A prepared folder: tar shards with their sidecars, index.json, and access to what they hold.

The same content gives the same bytes. `clips-000000.json` is the sidecar of `clips-000000.tar`: the
position of each member, so that it is read without a scan, a checksum, and notes of the maker. A
shard without its sidecar counts as missing.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
import torch
from pydantic import ValidationError

from diffsound.audio.io import read_audio
from diffsound.audio.mel import MelConfig, MelFrontEnd
from diffsound.config import Config, flat
from diffsound.data.record import AudioLocation, Record
from diffsound.errors import DataError
from diffsound.files import atomic_write, parse_json, read_json, sha256
from diffsound.text.features import TextFeatures

# id -> suffix -> (offset, bytes) of the member `id.suffix`
Members = dict[str, dict[str, tuple[int, int]]]


def write_shard(
    path: Path, entries: Iterable[tuple[str, Mapping[str, bytes]]], sidecar: Mapping[str, Any]
) -> dict[str, Any]:
    """Write (id, {suffix: bytes}) entries and their sidecar; return the sidecar."""
    members: Members = {}
    with writing(path):
        with atomic_write(path) as temporary:
            with tarfile.open(temporary, mode="w", format=tarfile.USTAR_FORMAT) as tar:
                for key, files in entries:
                    members[key] = {}
                    for suffix, content in files.items():
                        info = tarfile.TarInfo(f"{key}.{suffix}")
                        info.size = len(content)
                        # tarfile advances the offset itself; the data starts one block later.
                        members[key][suffix] = (tar.offset + tarfile.BLOCKSIZE, len(content))
                        tar.addfile(info, io.BytesIO(content))
            size, digest = temporary.stat().st_size, sha256(temporary)
        whole = {"bytes": size, "sha256": digest, "members": members, **sidecar}
        write_json(sidecar_path(path), whole)
    return whole


def read_sidecar(path: Path) -> dict[str, Any] | None:
    """The sidecar of a complete shard; None if either is missing or they do not match."""
    try:
        info = read_json(sidecar_path(path), limit=2**30)
        if path.stat().st_size != info["bytes"]:
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return dict(info)


def sidecar_path(path: Path) -> Path:
    return path.with_suffix(".json")


def read_span(path: str | Path, span: tuple[int, int]) -> bytes:
    """The bytes at (offset, length).

    The file is opened each time, which costs microseconds. Callers hold no handles, so they can be
    pickled, forked and used from threads.
    """
    try:
        with open(path, "rb") as stream:
            stream.seek(span[0])
            content = stream.read(span[1])
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    if len(content) != span[1]:
        raise DataError(f"{path} is shorter than its index says; prepare it again")
    return content


def read_fields(path: str | Path, span: tuple[int, int]) -> dict[str, Any]:
    """The JSON object at (offset, length) of a shard."""
    try:
        return dict(parse_json(read_span(path, span)))
    except (ValueError, TypeError) as error:
        raise DataError(f"a clip's JSON in {path} is damaged; prepare it again") from error


def write_json(path: str | Path, content: Mapping[str, Any]) -> None:
    """Write JSON, whole or not at all, with keys in the given order."""
    with atomic_write(path) as temporary:
        temporary.write_bytes(json_bytes(content))


def json_bytes(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Turn a full disk, a read-only folder and the like into one line."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise DataError(
            f"cannot write {path}: {reason}; what is finished is kept, run again to continue"
        ) from error


FORMAT = 1
NO_TOKEN = 2**16 - 1  # fills the columns after the end of a clip's shorter variants


class ShardInfo(Config):
    """One tar file: its size, number of clips and checksum."""

    name: str
    clips: int
    seconds: float
    bytes: int
    sha256: str


class Rejected(Config):
    """A clip that was left out, and why."""

    id: str
    reason: str


class Duplicates(Config):
    """Clips that sound the same; `correlation` is the weakest link between them."""

    ids: tuple[str, ...]
    correlation: float


class ClipsIndex(Config):
    """The content of a prepared folder and how it was made."""

    format: int = FORMAT
    kind: Literal["clips"] = "clips"
    complete: bool
    source: str
    settings: dict[str, Any]
    shards: tuple[ShardInfo, ...] = ()
    clips: int = 0
    seconds: float = 0.0
    rejected: tuple[Rejected, ...] = ()
    notes: tuple[str, ...] = ()
    near_duplicates: tuple[Duplicates, ...] = ()

    @property
    def mel(self) -> MelConfig:
        """The mel front end the folder was prepared for."""
        return MelConfig.model_validate(self.settings["mel"])


class DerivedIndex(Config):
    """What was derived from a prepared folder's clips with one model."""

    format: int = FORMAT
    complete: bool
    fingerprint: str
    shards: tuple[ShardInfo, ...] = ()


class TokensIndex(DerivedIndex):
    """The clips' tokens under one codec."""

    kind: Literal["tokens"] = "tokens"
    rows: int
    codebook_size: int
    time_stride: int
    mel: MelConfig
    variants: int
    seconds: float | None
    speed: float = 0.0


class TextIndex(DerivedIndex):
    """The captions' features under one text encoder."""

    kind: Literal["text"] = "text"
    dim: int
    encoder: dict[str, Any]


IndexT = TypeVar("IndexT", ClipsIndex, TokensIndex, TextIndex)
InfoT = TypeVar("InfoT", TokensIndex, TextIndex)


def read_index(model: type[IndexT], folder: str | Path) -> IndexT | None:
    """The folder's index, None if there is none; a damaged or newer one is refused."""
    path = Path(folder) / "index.json"
    try:
        content = read_json(path, limit=2**30)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}; prepare the folder again") from error
    found = content.get("format") if isinstance(content, dict) else None
    if isinstance(found, int) and found > FORMAT:
        raise DataError(
            f"{path} has format {found}, newer than the {FORMAT} this version reads; "
            "update diffsound"
        )
    try:
        return model.model_validate(content)
    except ValidationError as error:
        key = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise DataError(
            f"{path} is damaged or of another kind (at '{key}'); prepare the folder again"
        ) from error


def write_index(index: ClipsIndex | TokensIndex | TextIndex, folder: str | Path) -> None:
    path = Path(folder) / "index.json"
    with writing(path):
        write_json(path, index.model_dump(mode="json"))


def check_same_settings(old: dict[str, Any], new: dict[str, Any], folder: str | Path) -> None:
    """Refuse to mix settings in one folder; the message names the first that changed."""
    flat_old, flat_new = flat(old), flat(new)
    for key in sorted(flat_old.keys() | flat_new.keys()):
        if flat_old.get(key) != flat_new.get(key):
            raise DataError(
                f"{folder} was made with {key}={flat_old.get(key)!r}, now {key}="
                f"{flat_new.get(key)!r}; use the same settings or another --out"
            )


class PreparedData:
    """The clips of a prepared folder by position 0..len-1. Cheap to pickle to other processes."""

    def __init__(
        self,
        folder: Path,
        index: ClipsIndex,
        records: list[Record],
        members: list[dict[str, tuple[int, int]]],
    ) -> None:
        self.folder, self.index, self.records, self._members = folder, index, records, members
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
                name = f"{fields['id']}.flac"
                location = AudioLocation(str(path), member=name, span=spans["flac"])
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
        return TokenData(self, *_derived(TokensIndex, self.folder, fingerprint, "tokenize"))

    def text(self, fingerprint: str | None = None) -> TextData:
        """The captions' features under a text encoder; without a fingerprint, the only ones."""
        return TextData(self, *_derived(TextIndex, self.folder, fingerprint, "encode-text"))

    def where(
        self,
        *,
        split: str | None = None,
        labels: Collection[str] | None = None,
        licences: Collection[str] | None = None,
        sources: Collection[str] | None = None,
    ) -> list[int]:
        """Positions of the clips that meet every given condition (labels: any of them)."""
        wanted = None if labels is None else set(labels)
        return [
            i
            for i, record in enumerate(self.records)
            if (split is None or record.split == split)
            and (wanted is None or not wanted.isdisjoint(record.labels))
            and (licences is None or record.licence in licences)
            and (sources is None or record.source in sources)
        ]

    def verify(self) -> None:
        """Compare every shard with its checksum; a damaged one is named."""
        verify_shards(self.folder, self.index.shards)


class _Derived(Generic[InfoT]):
    """Per-clip files in shards that correspond to the clips' shards."""

    suffix: ClassVar[str]

    def __init__(self, data: PreparedData, folder: Path, info: InfoT) -> None:
        self.folder = folder
        self.info: InfoT = info
        self._data = data
        self._where: dict[str, tuple[str, tuple[int, int]]] = {}
        for shard in info.shards:
            for key, spans in shard_members(folder, shard).items():
                self._where[key] = (str(folder / shard.name), spans[self.suffix])

    def _read(self, i: int) -> io.BytesIO:
        clip_id = self._data.records[i].id
        if clip_id not in self._where:
            raise DataError(
                f"{self.folder} has nothing for the clip '{clip_id}'; run the command that made "
                "it again"
            )
        return io.BytesIO(read_span(*self._where[clip_id]))

    def verify(self) -> None:
        """Compare every shard with its checksum; a damaged one is named."""
        verify_shards(self.folder, self.info.shards)


class TokenData(_Derived[TokensIndex]):
    """Tokens by clip position."""

    suffix = "npy"

    def of(self, i: int) -> np.ndarray:
        """The clip's tokens, uint16 [variants, F', L']."""
        return np.asarray(np.load(self._read(i), allow_pickle=False))


class TextData(_Derived[TextIndex]):
    """Text features by clip position."""

    suffix = "npz"

    def of(self, i: int) -> TextFeatures:
        """The features of the clip's captions, in their order: a batch [captions, S, D]."""
        with np.load(self._read(i), allow_pickle=False) as arrays:
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
        path = folder / shard.name
        try:
            found = sha256(path)
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from error
        if found != shard.sha256:
            raise DataError(
                f"{path} is damaged: it does not match its checksum; "
                "delete it and run the command that made it again"
            )


def _derived(
    model: type[InfoT], folder: Path, fingerprint: str | None, command: str
) -> tuple[Path, InfoT]:
    """The folder of a fingerprint (None: of the only one) and its complete index."""
    parent = folder / str(model.model_fields["kind"].default)
    found = sorted(path.name for path in parent.iterdir()) if parent.is_dir() else []
    if not found:
        raise DataError(f"{parent} does not exist; make it with: diffsound data {command}")
    chosen = fingerprint or found[0]
    if chosen not in found or (fingerprint is None and len(found) > 1):
        wanted = f"'{fingerprint}' is not among" if fingerprint else "choose one of"
        raise DataError(f"{parent}: {wanted} {', '.join(found)}")
    index = read_index(model, parent / chosen)
    if index is None or not index.complete:
        raise DataError(f"{parent / chosen} is not finished; run diffsound data {command} again")
    return parent / chosen, index
