"""The rows of a bulk job: what the file of prompts says, and what is to be made of it.

Three kinds of files: JSONL (an object a line), CSV (with a header) and plain text (a prompt a
line). A row that leaves a setting out takes the default of the whole batch, then the bundle's.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from diffsound.config import Config, parse_config
from diffsound.errors import ConfigError, DataError
from diffsound.names import slug

MAX_SEED = 2**63 - 1
_SHORT_SEEDS = 2**32


class Row(Config):
    """One row, with the names of the command line's options. Values the model alone can judge (a
    duration it cannot make) are left to it; they fail that row and no other."""

    prompt: str
    name: str | None = Field(default=None, pattern=r"^[\w][\w .-]{0,120}$")
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)
    duration: float | None = None
    negative: str | None = None
    candidates: int | None = Field(default=None, ge=1, le=100)
    keep: int | None = Field(default=None, ge=1)
    steps: int | None = None
    guidance: float | None = None
    sampler: str | None = None
    temperature: float | None = None
    top_k: int | None = None
    truncation: float | None = None
    best_of: int | None = None
    layered: bool | None = None


# The row's names of a SamplingSettings field.
_SAMPLING = {
    "steps": "num_inference_steps",
    "guidance": "guidance_scale",
    "sampler": "sampler",
    "temperature": "temperature",
    "top_k": "top_k",
    "truncation": "truncation",
    "best_of": "best_of",
    "layered": "layered",
}


@dataclass(frozen=True)
class Request:
    """A row, complete: what to make, and the files it goes to.

    line: the row's line in the file of prompts. seeds: one per candidate. files: one per seed;
    with `keep`, one per place among the best, since only the ranker knows whose they will be.
    """

    line: int
    prompt: str
    seeds: tuple[int, ...]
    files: tuple[str, ...]
    duration: float | None
    negative: str | None
    sampling: Mapping[str, Any]
    keep: int | None = None

    @property
    def settings(self) -> tuple[Any, ...]:
        """Equal for requests that can run in one micro-batch."""
        return (self.duration, self.negative, tuple(sorted(self.sampling.items())))

    def key(self, place: int, context: str) -> str:
        """The identity of one of its sounds; `context` is what else they depend on."""
        chosen = self.seeds[place] if self.keep is None else [self.seeds, self.keep, place]
        parts = [self.prompt, chosen, *self.settings, context]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def read_requests(path: str | Path, file_format: str, **defaults: Any) -> list[Request]:
    """Every row of a file, with seeds and file names; what is wrong is named with its line.

    defaults: values of Row fields for rows that leave them out. A row without a seed gets one made
    from its prompt, so that a second run makes the same sounds: the n-th row with a prompt always
    the same, wherever it stands.
    """
    shared = {name: value for name, value in defaults.items() if value is not None}
    path = Path(path)
    requests: list[Request] = []
    repeats: dict[str, int] = {}
    written: dict[str, int] = {}
    for line, values in _read(path):
        try:
            row = parse_config(Row, shared | values, source=f"{path}, line {line}")
        except ConfigError as error:
            raise DataError(str(error)) from error
        occurrence = repeats.setdefault(row.prompt, 0)
        repeats[row.prompt] += 1
        if row.keep is not None and row.keep > (row.candidates or 1):
            raise DataError(
                f"{path}, line {line} would keep {row.keep} of {row.candidates or 1} candidates"
            )
        request = _request(line, row, occurrence, file_format)
        for name in request.files:
            if written.setdefault(name.lower(), line) != line:
                raise DataError(
                    f"{path}: the rows of line {written[name.lower()]} and {line} would both be "
                    f"written to {name}; give one of them another name or seed"
                )
        requests.append(request)
    if not requests:
        raise DataError(f"{path} has no prompts")
    return requests


def _request(line: int, row: Row, occurrence: int, file_format: str) -> Request:
    seed = _seed(row.prompt, occurrence) if row.seed is None else row.seed
    seeds = tuple((seed + place) % (MAX_SEED + 1) for place in range(row.candidates or 1))
    if row.keep is None and row.name is None:
        stems = [f"{slug(row.prompt)}-{one}" for one in seeds]
    else:
        stems = _numbered(row.name or f"{slug(row.prompt)}-{seed}", row.keep or len(seeds))
    return Request(
        line=line,
        prompt=row.prompt,
        seeds=seeds,
        files=tuple(f"{stem}.{file_format}" for stem in stems),
        duration=row.duration,
        negative=row.negative,
        sampling={
            theirs: getattr(row, ours)
            for ours, theirs in _SAMPLING.items()
            if getattr(row, ours) is not None
        },
        keep=row.keep,
    )


def _numbered(stem: str, count: int) -> list[str]:
    return [stem] if count == 1 else [f"{stem}-{number}" for number in range(1, count + 1)]


def _seed(prompt: str, occurrence: int) -> int:
    digest = hashlib.sha256(f"{occurrence}\n{prompt}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % _SHORT_SEEDS


def _read(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line numbers and values of the rows."""
    readers = {".jsonl": _jsonl, ".csv": _csv, ".txt": _text}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"cannot tell what {path} holds; name it .jsonl, .csv or .txt")
    try:
        # utf-8-sig: spreadsheets begin their CSV with a byte-order mark.
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text (byte {error.start})") from error
    yield from reader(path, text)


def _jsonl(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, content in enumerate(text.split("\n"), 1):
        if not content.strip():
            continue
        try:
            values = json.loads(content)
        except ValueError as error:
            raise DataError(f"{path}, line {line} is not JSON: {error}") from error
        if not isinstance(values, dict):
            raise DataError(f'{path}, line {line} must be an object such as {{"prompt": "rain"}}')
        yield line, {name: value for name, value in values.items() if value is not None}


def _csv(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.reader(text.splitlines(keepends=True), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_header(path, header)
        start = reader.line_num + 1
        for cells in reader:
            line, start = start, reader.line_num + 1
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(header):
                raise DataError(
                    f"{path}, line {line} has {len(cells)} cells, the header {len(header)}"
                )
            yield line, {n: c for n, c in zip(header, cells, strict=True) if c.strip()}
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num} is not CSV: {error}") from error


def _check_header(path: Path, header: Iterable[str]) -> None:
    """Unknown columns are all named at once: a typo must not silently change the sounds."""
    known = tuple(Row.model_fields)
    unknown = [name for name in header if name not in known]
    if unknown:
        listed = ", ".join(f"'{name}'" for name in unknown)
        raise DataError(f"{path} has the unknown columns {listed}; there are: {', '.join(known)}")
    if "prompt" not in header:
        raise DataError(f"{path} has no column 'prompt'")


def _text(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, content in enumerate(text.split("\n"), 1):
        if content.strip():
            yield line, {"prompt": content.strip()}
