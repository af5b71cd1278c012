"""The rows of a bulk job: what the file of prompts says, and what to make from it.

Three kinds of files: JSONL (an object a line), CSV (with a header) and plain text (a prompt a
line). A row that leaves a setting out takes the default of the whole batch, then the bundle's.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import Field, create_model

from diffsound.audio.io import check_encoding
from diffsound.batch.pack import OWN_FILES
from diffsound.config import Config, parse_config, shown
from diffsound.errors import ConfigError, DataError, DiffsoundError
from diffsound.files import parse_json, read_text
from diffsound.generation.settings import (
    MAX_SEED,
    OUTPUT,
    SETTINGS,
    SHORT_SEEDS,
    TAKES,
    GivenOutput,
    GivenSettings,
    OutputSettings,
    check_takes,
    optional,
    renamed,
    short_name,
    slug,
)

_COLUMNS = TAKES | SETTINGS | OUTPUT


class _Named(Config):
    """What a row says besides settings."""

    prompt: str
    name: str | None = Field(default=None, pattern=r"^[\w][\w .-]{0,120}$")
    folder: str | None = Field(default=None, pattern=r"^[\w][\w .-]{0,60}$")


if TYPE_CHECKING:

    class BatchRow(_Named):
        """One row: a prompt and any settings, with the names of the command line's options."""

        seed: int | None
        candidates: int | None
        keep: int | None
        variations: int | None
        loop: bool | None
        trim: bool | None

else:
    BatchRow = create_model(
        "BatchRow",
        __base__=_Named,
        **{short_name(name): optional(field) for name, field in _COLUMNS.items()},
    )


@dataclass(frozen=True)
class RowTask:
    """A row, complete: what to make, and the files it goes to.

    line: the row's line in the file of prompts. seeds: one per candidate. files: one per seed;
    with `keep`, one per place among the best, since only the ranker knows whose they will be.
    output: how the files are written. varied: the sounds are variations of the first one.
    """

    line: int
    prompt: str
    seeds: tuple[int, ...]
    files: tuple[str, ...]
    settings: GivenSettings
    output: GivenOutput
    keep: int | None = None
    varied: bool = False

    @property
    def whole(self) -> bool:
        """Whether its sounds depend on each other, so that none can be made alone."""
        return self.varied or self.keep is not None

    @property
    def group(self) -> tuple[Any, ...]:
        """Equal for requests that can run in one micro-batch."""
        rest: dict[str, Any] = dict(self.settings)
        first = rest.pop("duration", None), rest.pop("negative_prompt", None)
        return (*first, tuple(sorted(rest.items())), *([self.line] if self.varied else []))

    def key(self, place: int, context: Sequence[str | None]) -> str:
        """The identity of one of its sounds; `context` is what else they depend on."""
        chosen = [self.seeds, self.keep, place] if self.whole else self.seeds[place]
        parts = [self.prompt, chosen, *self.group[:3], json.dumps([*context, self.output])]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def read_requests(
    path: str | Path, file_format: str, *, folders: bool = False, **defaults: Any
) -> list[RowTask]:
    """Every row of a file, with seeds and file names; an error names its line.

    folders: of a sample pack: each row's own, or one for each prompt with several sounds.
    defaults: values for the rows that leave them out, by the names of `BatchRow`. A row without a
    seed gets one made from its prompt, so that a second run makes the same sounds: the n-th row
    with a prompt always gets the same one, wherever it stands.
    """
    shared = {name: value for name, value in defaults.items() if value is not None}
    path = Path(path)
    requests: list[RowTask] = []
    repeats: dict[str, int] = {}
    written: dict[str, int] = {}
    for line, values in _read(path):
        try:
            row = parse_config(BatchRow, shared | values, source=f"{path}, line {line}")
        except ConfigError as error:
            raise DataError(str(error)) from error
        occurrence = repeats.setdefault(row.prompt, 0)
        repeats[row.prompt] += 1
        try:
            check_takes(row.candidates or 1, row.keep, row.variations, loop=row.loop)
            request = _request(line, row, occurrence, file_format)
        except DiffsoundError as error:
            raise DataError(f"{path}, line {line}: {renamed(str(error), short_name)}") from error
        if folders:
            request = replace(request, files=_in_folder(row, request.files))
        elif row.folder is not None:
            raise DataError(f"{path}, line {line} has a folder; folders belong to --pack")
        for name in request.files:
            if written.setdefault(name.lower(), line) != line:
                raise DataError(
                    f"{path}: the rows of line {written[name.lower()]} and {line} would both be "
                    f"written to {name}; give one of them another name or seed"
                )
        requests.append(request)
    if not requests:
        raise DataError(f"{path} has no prompts")
    _check_folders(path, written)
    return requests


def _check_folders(path: Path, written: Mapping[str, int]) -> None:
    """Refuse a folder with the name of a file; written: lines by their files' names."""
    files = {*written, *(name.lower() for name in OWN_FILES)}
    for name, line in written.items():
        folder, slash, _ = name.partition("/")
        if slash and folder in files:
            raise DataError(f"{path}, line {line}: the pack has a file named {folder}")


def _request(line: int, row: BatchRow, occurrence: int, file_format: str) -> RowTask:
    seed = _seed(row.prompt, occurrence) if row.seed is None else row.seed
    count = row.variations or row.candidates or 1
    seeds = tuple((seed + place) % (MAX_SEED + 1) for place in range(count))
    output = cast(GivenOutput, _given(row, OUTPUT))
    settings = OutputSettings(**output)
    check_encoding(file_format, settings.bits, settings.rate or 22050)
    if row.loop and row.trim:
        raise DataError("trim would open the loop; leave it out")
    if row.keep is None and row.name is None:
        stems = [f"{slug(row.prompt)}-{one}" for one in seeds]
    else:
        stems = _numbered(row.name or f"{slug(row.prompt)}-{seed}", row.keep or len(seeds))
    return RowTask(
        line=line,
        prompt=row.prompt,
        seeds=seeds,
        files=tuple(f"{stem}.{file_format}" for stem in stems),
        settings=cast(GivenSettings, _given(row, SETTINGS)),
        output=output,
        keep=row.keep,
        varied=row.variations is not None,
    )


def _in_folder(row: BatchRow, files: tuple[str, ...]) -> tuple[str, ...]:
    """The row's files in its folder, without the seeds in their names."""
    stem = row.name or slug(row.prompt)
    folder = row.folder or (stem if len(files) > 1 else "")
    ending = files[0].rpartition(".")[2]
    width = max(2, len(str(len(files))))
    names = [f"{stem}-{number:0{width}}" for number in range(1, len(files) + 1)]
    names = names if len(files) > 1 else [stem]
    return tuple(f"{folder}/{name}.{ending}" if folder else f"{name}.{ending}" for name in names)


def _given(row: BatchRow, names: Iterable[str]) -> dict[str, Any]:
    """Those of these settings that a row has, by Python's names."""
    values = {name: getattr(row, short_name(name)) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _numbered(stem: str, count: int) -> list[str]:
    return [stem] if count == 1 else [f"{stem}-{number}" for number in range(1, count + 1)]


def _seed(prompt: str, occurrence: int) -> int:
    digest = hashlib.sha256(f"{occurrence}\n{prompt}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % SHORT_SEEDS


def _read(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line numbers and values of the rows."""
    readers = {".jsonl": _jsonl, ".csv": _csv, ".txt": _text}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"cannot tell what {path} holds; name it .jsonl, .csv or .txt")
    try:
        # utf-8-sig: spreadsheets begin their CSV with a byte-order mark.
        text = read_text(path, "utf-8-sig")
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
            values = parse_json(content)
        except ValueError as error:
            raise DataError(f"{path}, line {line} is not JSON: {error}") from error
        if not isinstance(values, dict):
            raise DataError(f'{path}, line {line} must be an object such as {{"prompt": "rain"}}')
        yield line, {name: value for name, value in values.items() if value is not None}


def _csv(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.reader(io.StringIO(text), strict=True)
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
            # An empty cell leaves its setting out; an empty prompt fails alone, as in JSONL.
            row = zip(header, cells, strict=True)
            yield line, {name: cell for name, cell in row if cell.strip() or name == "prompt"}
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num} is not CSV: {error}") from error


def _check_header(path: Path, header: Iterable[str]) -> None:
    """Unknown columns are all named at once: a typo must not silently change the sounds."""
    known = tuple(BatchRow.model_fields)
    unknown = [name for name in header if name not in known]
    if unknown:
        listed = ", ".join(f"'{shown(name)}'" for name in unknown[:10])
        raise DataError(f"{path} has the unknown columns {listed}; there are: {', '.join(known)}")
    if "prompt" not in header:
        raise DataError(f"{path} has no column 'prompt'")


def _text(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, content in enumerate(text.split("\n"), 1):
        if content.strip():
            yield line, {"prompt": content.strip()}
