"""The listening test (MOS, section VI-A): the page, its server, and what listeners said.

    build_test("mos", {"diffsound": "eval/diffsound", "ar": "eval/ar"}, texts=15)
    ListeningServer("mos").serve_forever()
    listening_report("mos")

    TEST/index.html     the whole test in one file, which does not tell which sound is whose
    TEST/key.json       which sound is whose; stays with the experimenter
    TEST/ratings/       a file per listener
    TEST/report.json    means, intervals and agreement; report.md the same as a table

Every text has the real clip and one or more sounds of each system. Sounds have random names, are
stored in the order of those names, and are shuffled for each listener.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
import socket
import threading
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from diffsound.audio.io import read_audio
from diffsound.config import Config, parse_config
from diffsound.errors import ConfigError, DataError, DiffsoundError, InputError
from diffsound.evaluation.metrics import LEVEL, RESAMPLES, TAILS, Interval
from diffsound.evaluation.pages import audio_url
from diffsound.evaluation.sets import common_texts, write_json
from diffsound.files import make_folder, parse_json, read_json, write_text
from diffsound.html import render, write_page

REAL, MOS = "real", "MOS"
SCALES = ("relevance", "fidelity", "intelligibility")
LOUDNESS = -23.0  # LUFS; louder sounds seem better
# Table 1: relevance, fidelity, intelligibility, MOS.
PAPER = {
    REAL: (4.307, 4.167, 3.873, 4.116),
    "ar": (2.747, 2.7, 2.913, 2.786),
    "diffsound": (3.833, 3.487, 3.36, 3.56),
}
_RATE = 22050
_NAME = re.compile(r"[0-9a-f]{8,64}")
_LARGEST = 1 << 20  # bytes of a listener's ratings
MAX_LISTENERS, MAX_CONNECTIONS = 1000, 64
CONNECTION_SECONDS = 300.0  # for one to end, however slowly it sends and reads

Grade = Annotated[int, Field(ge=0, le=5)]


class Rating(Config):
    """A listener's grades of a sound, 0 (bad) to 5, and when (milliseconds since 1970)."""

    relevance: Grade
    fidelity: Grade
    intelligibility: Grade
    at: Annotated[float, Field(ge=0)] = 0.0


class Ratings(Config):
    """A listener's file; `listener` is a random name that the page chose."""

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
) -> Path:
    """Write a test of systems from the folders of their evaluations; returns the page.

    texts: number drawn from those that all runs have. takes: sounds of each system per text.
    """
    if not runs or REAL in runs or texts < 1 or takes < 1:
        raise InputError(f"a test needs texts, takes, and systems that are not named '{REAL}'")
    out = Path(out)
    if (out / "key.json").exists():
        raise InputError(
            f"{out} already holds a test, to which its ratings belong; choose another folder"
        )
    captions = common_texts(runs)
    chosen = np.random.default_rng(seed).permutation(sorted(captions))[:texts].tolist()
    first = Path(next(iter(runs.values())))
    key: dict[str, KeyEntry] = {}
    urls: dict[str, str] = {}
    for clip_id in chosen:
        sources = [(REAL, first / "real" / f"{clip_id}.wav")]
        for system, folder in runs.items():
            sources += [
                (system, Path(folder) / "generated" / f"{clip_id}.{n}.wav") for n in range(takes)
            ]
        for system, path in sources:
            name = secrets.token_hex(8)
            key[name] = KeyEntry(text=clip_id, system=system, source=path.name)
            urls[name] = audio_url(read_audio(path, _RATE), _RATE, loudness=LOUDNESS)
    test = secrets.token_hex(8)
    make_folder(out / "ratings")
    # Texts are numbered in the page: a clip's id may tell where the clip comes from.
    numbers = sorted(chosen)
    content = {
        "test": test,
        "scales": SCALES,
        "texts": [captions[clip_id] for clip_id in numbers],
        "sounds": [
            {"name": name, "text": numbers.index(key[name].text), "url": url}
            for name, url in sorted(urls.items())
        ],
    }
    page = render(
        "listening.html",
        styles=["listening.css"],
        scripts=["listening.js"],
        allow={"connect-src": "'self'"},
        title="Listening test",
        content=content,
    )
    target = write_page(out / "index.html", page)
    stored = Key(test=test, loudness=LOUDNESS, clips=key)
    write_json(out / "key.json", stored.model_dump(mode="json"))
    return target


def read_key(folder: str | Path) -> Key:
    """The key of a test."""
    path = Path(folder) / "key.json"
    try:
        return parse_config(Key, read_json(path), str(path))
    except FileNotFoundError:
        raise DataError(
            f"{folder} holds no listening test (no key.json); make one with: "
            "diffsound evaluate listen build"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def parse_ratings(content: bytes, key: Key) -> Ratings:
    """Ratings as a page sends them, checked against the test."""
    try:
        ratings = parse_config(Ratings, parse_json(content), "ratings")
    except (ConfigError, UnicodeDecodeError, ValueError) as error:
        raise InputError(f"these are not ratings: {' '.join(str(error).split())[:200]}") from error
    if not _NAME.fullmatch(ratings.listener):
        raise InputError("a listener's name must be 8 to 64 hexadecimal digits")
    if ratings.test != key.test:
        raise InputError("these ratings belong to another test; reload the page")
    unknown = next((name for name in ratings.ratings if name not in key.clips), None)
    if unknown is not None:
        raise InputError(f"the test has no sound '{unknown[:40]}'")
    return ratings


def keep_ratings(folder: str | Path, ratings: Ratings) -> Ratings:
    """Add ratings to the listener's file, the later one winning; returns all in the file."""
    path = Path(folder) / "ratings" / f"{ratings.listener}.json"
    joined = dict(ratings.ratings)
    if path.exists():
        before = Ratings.model_validate(read_json(path))
        for name, rating in before.ratings.items():
            if name not in joined or joined[name].at < rating.at:
                joined[name] = rating
    elif sum(1 for _ in path.parent.glob("*.json")) >= MAX_LISTENERS:
        raise InputError(f"the test has {MAX_LISTENERS} listeners, and takes no more")
    result = ratings.model_copy(update={"ratings": joined})
    write_json(path, result.model_dump(mode="json"))
    return result


def read_ratings(folder: str | Path) -> tuple[list[Ratings], dict[str, str]]:
    """All listeners' ratings, and the files that cannot be used, with reasons."""
    key = read_key(folder)
    found, failed = [], {}
    for path in sorted((Path(folder) / "ratings").glob("*.json")):
        try:
            found.append(parse_ratings(path.read_bytes(), key))
        except InputError as error:
            failed[path.name] = str(error)
    return found, failed


class ListeningServer(ThreadingHTTPServer):
    """Serves the page of a test and takes ratings, nothing else. Port 0 picks a free one."""

    daemon_threads = True

    def __init__(self, folder: str | Path, host: str = "127.0.0.1", port: int = 8770) -> None:
        self.folder = Path(folder)
        self.key = read_key(folder)
        try:
            self.page = (self.folder / "index.html").read_bytes()
        except OSError as error:
            raise InputError(f"{folder} has no page: {error.strerror}") from error
        # Two tabs of one listener may send at once; a file must be read and rewritten as one step.
        self.writing = threading.Lock()
        self._places = threading.BoundedSemaphore(MAX_CONNECTIONS)
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise InputError(f"cannot listen on {host}:{port}: {error.strerror}") from error

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        end = threading.Timer(CONNECTION_SECONDS, request.shutdown, (socket.SHUT_RDWR,))
        end.daemon = True
        end.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            self._places.release()

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}/"


class _Handler(BaseHTTPRequestHandler):
    server: ListeningServer
    timeout = 30
    server_version = "diffsound"
    sys_version = ""

    def do_GET(self) -> None:
        if not self._is_for_us():
            return
        if self.path.split("?")[0] in ("/", "/index.html"):
            self._answer(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")
        else:
            self._say(HTTPStatus.NOT_FOUND, "the only page is the test, at /")

    def do_PUT(self) -> None:
        if not self._is_for_us():
            return
        try:
            length = int(self.headers.get("Content-Length") or -1)
        except ValueError:
            length = -1
        if not 0 <= length <= _LARGEST:
            self.close_connection = True
            self._say(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"send at most {_LARGEST} bytes")
            return
        try:
            ratings = parse_ratings(self.rfile.read(length), self.server.key)
            if self.path != f"/ratings/{ratings.listener}":
                raise InputError("the address and the listener differ")
            with self.server.writing:
                kept = keep_ratings(self.server.folder, ratings)
        except DiffsoundError as error:
            self._say(HTTPStatus.UNPROCESSABLE_ENTITY, str(error))
        except (OSError, ValueError) as error:
            # A full disk or a damaged file: the page keeps its copy and tries again.
            self._say(HTTPStatus.INTERNAL_SERVER_ERROR, f"the ratings could not be kept: {error}")
        else:
            self._say(HTTPStatus.OK, f"{len(kept.ratings)} sounds graded")

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the ratings' files are the log."""

    def _is_for_us(self) -> bool:
        """Whether the browser meant this server: another site may point its own name here."""
        name = (self.headers.get("Host") or "").rpartition(":")[0].strip("[]")
        bound = str(self.server.server_address[0])
        if not ipaddress.ip_address(bound).is_loopback or name in (bound, "localhost"):
            return True
        self._say(HTTPStatus.FORBIDDEN, "this server only answers to its own address")
        return False

    def _say(self, status: HTTPStatus, text: str) -> None:
        self._answer(status, text.encode(), "text/plain; charset=utf-8")

    def _answer(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        # The page carries a policy of its own; nothing else is a document.
        policy = "" if kind.startswith("text/html") else "default-src 'none'; "
        self.send_header("Content-Security-Policy", f"{policy}frame-ancestors 'none'")
        self.end_headers()
        self.wfile.write(body)


def listening_report(folder: str | Path) -> dict[str, Any]:
    """Means, intervals and agreement of a test; writes FOLDER/report.json and report.md."""
    key, (listeners, failed) = read_key(folder), read_ratings(folder)
    listeners = [listener for listener in listeners if listener.ratings]
    if not listeners:
        raise DataError(f"nobody has rated a sound in {folder} yet")
    grades = _grades(key, listeners)
    systems: dict[str, Any] = {}
    for system in key.systems:
        columns = [at for at, clip in enumerate(key.clips.values()) if clip.system == system]
        texts = [clip.text for clip in key.clips.values() if clip.system == system]
        systems[system] = {
            scale: _figure(values[:, columns], texts) for scale, values in grades.items()
        }
    report = {
        "listeners": len(listeners),
        "sounds": len(key.clips),
        "ratings": sum(len(listener.ratings) for listener in listeners),
        "unreadable": failed,
        "interval": f"{LEVEL:.0%}, bootstrap over listeners and texts",
        "agreement": {scale: krippendorff_alpha(values) for scale, values in grades.items()},
        "agreement_measure": "Krippendorff's alpha, interval scale (1 perfect, 0 chance)",
        "loudness_lufs": key.loudness,
        "systems": systems,
    }
    write_json(Path(folder) / "report.json", report)
    write_text(Path(folder) / "report.md", report_markdown(report))
    return report


def krippendorff_alpha(values: np.ndarray) -> float | None:
    """Agreement of ratings [listeners, sounds] (NaN: not rated) on an interval scale.

    1 - observed / expected disagreement, in squared differences, over sounds that at least two
    listeners rated. None without such sounds, or when all grades are equal.
    """
    counts = (~np.isnan(values)).sum(axis=0)
    shared = values[:, counts >= 2]
    counts = counts[counts >= 2]
    pooled = shared[~np.isnan(shared)]
    if not len(pooled) or np.ptp(pooled) == 0:
        return None
    # Σ over pairs (a - b)² of n values is n Σ a² - (Σ a)², ordered pairs counted twice.
    sums, squares = np.nansum(shared, axis=0), np.nansum(shared**2, axis=0)
    observed = (2 * (counts * squares - sums**2) / (counts - 1)).sum() / len(pooled)
    total = 2 * (len(pooled) * (pooled**2).sum() - pooled.sum() ** 2)
    expected = total / (len(pooled) * (len(pooled) - 1))
    return float(1 - observed / expected)


def crossed_interval(values: np.ndarray, texts: Sequence[str]) -> Interval:
    """Interval of the mean of ratings [listeners, sounds] when both are resampled.

    Ratings by one listener are alike, and so are those of one text; resampling single ratings
    would claim more certainty than there is. None, None with a single listener and a single text.
    """
    numbers = {text: at for at, text in enumerate(dict.fromkeys(texts))}
    place = np.array([numbers[text] for text in texts])
    listeners = len(values)
    if listeners < 2 and len(numbers) < 2:
        return None, None
    known = ~np.isnan(values)
    filled = np.where(known, values, 0.0)
    rng = np.random.default_rng(0)
    means = []
    for _ in range(RESAMPLES):
        people = np.bincount(rng.integers(listeners, size=listeners), minlength=listeners)
        drawn = np.bincount(rng.integers(len(numbers), size=len(numbers)), minlength=len(numbers))
        weights = drawn[place]
        heard = people @ known @ weights
        if heard:  # otherwise nobody rated what was drawn
            means.append(people @ filled @ weights / heard)
    low, high = np.quantile(means, TAILS).tolist()
    return low, high


def report_markdown(report: dict[str, Any]) -> str:
    """Table 1: our figures beside the paper's."""
    columns = [*SCALES, MOS]
    lines = [
        f"# Listening test: {report['listeners']} listeners, {report['sounds']} sounds",
        "",
        f"Mean [{report['interval']}]; the paper's figure in parentheses.",
        "",
        "| | " + " | ".join(columns) + " |",
        "| --- |" + " --- |" * len(columns),
    ]
    for system, figures in report["systems"].items():
        paper = dict(zip(columns, PAPER.get(system.lower(), ()), strict=False))
        cells = [_cell(figures[scale], paper.get(scale)) for scale in columns]
        lines.append(f"| {system} | " + " | ".join(cells) + " |")
    agreement = ", ".join(
        f"{scale} {'not defined' if alpha is None else format(alpha, '.2f')}"
        for scale, alpha in report["agreement"].items()
    )
    lines += ["", f"Agreement ({report['agreement_measure']}): {agreement}.", ""]
    if report["unreadable"]:
        lines += [f"Left out: {', '.join(report['unreadable'])}.", ""]
    return "\n".join(lines)


def _grades(key: Key, listeners: Sequence[Ratings]) -> dict[str, np.ndarray]:
    """Ratings [listeners, sounds] of each scale and of their mean, NaN where there is none."""
    grades = {}
    for scale in SCALES:
        rows = [
            [getattr(listener.ratings.get(name), scale, np.nan) for name in key.clips]
            for listener in listeners
        ]
        grades[scale] = np.array(rows, dtype=np.float64)
    return grades | {MOS: np.mean(list(grades.values()), axis=0)}


def _figure(values: np.ndarray, texts: Sequence[str]) -> dict[str, Any]:
    rated = int((~np.isnan(values)).sum())
    if not rated:
        return {"mean": None, "low": None, "high": None, "ratings": 0}
    low, high = crossed_interval(values, texts)
    return {"mean": float(np.nanmean(values)), "low": low, "high": high, "ratings": rated}


def _cell(figure: dict[str, Any], paper: float | None) -> str:
    if figure["mean"] is None:
        return "not rated"
    interval = "" if figure["low"] is None else f" [{figure['low']:.2f}, {figure['high']:.2f}]"
    return f"{figure['mean']:.2f}{interval}" + ("" if paper is None else f" ({paper})")
