"""The server over a long time under mixed load: is its memory flat, does /healthz answer?

    python benchmarks/server_soak.py [--bundle DIR] [--clients 8] [--minutes 30] [--json]
    python benchmarks/server_soak.py --clients 16 --minutes 2      # health under load

The clients generate, run jobs and read their events, upload and edit clips, cancel, and hang up in
the middle. Targets: memory besides what is kept for callers grows at most 5 % from the second
quarter of the time to the last; the 99th percentile of /healthz is at most 100 ms; no answer is a
5xx. Ends with exit code 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import random
import re
import socket
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.queues import Queue

import httpx
import numpy as np
import soundfile

from server_load import PROMPTS, report, server

GROWTH, HEALTH_MS = 1.05, 100.0  # at most
PROBE_SECONDS, SAMPLE_SECONDS = 0.1, 2.0
ROWS = 15  # of the table of memory over time, about


class Client:
    """One caller with a connection of its own, who does a little of everything."""

    def __init__(self, url: str, number: int, seconds: float, steps: int | None) -> None:
        self.url = url
        self.http = httpx.Client(base_url=url, timeout=600)
        self.random = random.Random(number)
        self.body: dict[str, object] = {"duration": seconds}
        if steps is not None:
            self.body["num_inference_steps"] = steps
        self.statuses: Counter[str] = Counter()
        buffer = io.BytesIO()
        noise = np.random.default_rng(number).uniform(-0.3, 0.3, 44100)
        soundfile.write(buffer, noise, 44100, format="FLAC")
        self.clip = buffer.getvalue()

    def run(self, end: float) -> None:
        acts: list[Callable[[], None]] = [
            self.generate, self.generate, self.generate_links, self.job, self.edit,
            self.cancel, self.hang_up,
        ]  # fmt: skip
        while time.monotonic() < end:
            self.random.choice(acts)()

    def request(self) -> dict[str, object]:
        prompt = self.random.choice(PROMPTS)
        return self.body | {"prompt": prompt, "seed": self.random.randrange(2**32)}

    def count(self, act: str, answer: httpx.Response) -> httpx.Response:
        self.statuses[f"{act} {answer.status_code}"] += 1
        if answer.status_code == 429:
            time.sleep(float(answer.headers["Retry-After"]))
        return answer

    def generate(self) -> None:
        self.count("generate", self.http.post("/v1/generate", json=self.request()))

    def generate_links(self) -> None:
        body = self.request() | {"num_candidates": 2, "deliver": "url"}
        accept = {"Accept": "application/json"}
        answer = self.count("links", self.http.post("/v1/generate", json=body, headers=accept))
        for sound in answer.json().get("sounds", []):
            self.http.get(sound["url"], params={"format": "flac"})
            self.http.get(sound["spectrogram_url"])

    def job(self) -> None:
        answer = self.count("job", self.http.post("/v1/jobs", json=self.request()))
        if answer.status_code == 202:
            with self.http.stream("GET", answer.json()["events_url"]) as events:
                events.read()

    def cancel(self) -> None:
        answer = self.count("job", self.http.post("/v1/jobs", json=self.request()))
        if answer.status_code == 202:
            time.sleep(self.random.uniform(0, 0.3))
            self.count("cancel", self.http.delete(answer.json()["url"]))

    def edit(self) -> None:
        fields = {"prompt": self.random.choice(PROMPTS), "strength": "0.5"}
        files = {"clip": ("clip.flac", self.clip)}
        self.count("edit", self.http.post("/v1/edit/vary", data=fields, files=files))

    def hang_up(self) -> None:
        host, port = self.url.removeprefix("http://").split(":")
        body = json.dumps(self.request()).encode()
        head = (
            f"POST /v1/generate HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        with suppress(OSError), socket.create_connection((host, int(port))) as line:
            line.sendall(head.encode() + body)
            time.sleep(self.random.uniform(0, 0.3))
        self.statuses["hang up"] += 1


def probe(url: str, seconds: float, found: Queue[list[float]]) -> None:
    """Milliseconds of every /healthz, from a process that does nothing else."""
    times = []
    end = time.monotonic() + seconds
    with httpx.Client(timeout=60) as client:
        while time.monotonic() < end:
            start = time.monotonic()
            client.get(f"{url}/healthz").raise_for_status()
            times.append(1000 * (time.monotonic() - start))
            time.sleep(PROBE_SECONDS)
    found.put(times)


def memory_mb(url: str) -> tuple[float, float]:
    """Resident memory, and the part of it that is kept for callers."""
    text = httpx.get(f"{url}/metrics", timeout=60).text
    (resident,) = re.findall(r"^process_resident_memory_bytes (\S+)", text, re.MULTILINE)
    kept = re.findall(r"^diffsound_kept_bytes{\S+} (\S+)", text, re.MULTILINE)
    return float(resident) / 1e6, sum(map(float, kept)) / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", help="a bundle's folder; the packaged one if missing")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--duration", type=float, default=3.0, help="seconds of each sound")
    parser.add_argument("--steps", type=int, help="sampling steps; the bundle's own if missing")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    seconds = 60 * given.minutes
    found: Queue[list[float]] = multiprocessing.Queue()
    samples: list[tuple[float, float]] = []
    moments: list[float] = []  # seconds since the start, of each sample
    with server(given.bundle) as url:
        prober = multiprocessing.Process(target=probe, args=(url, seconds, found))
        prober.start()
        end = time.monotonic() + seconds
        clients = [Client(url, i, given.duration, given.steps) for i in range(given.clients)]
        threads = [threading.Thread(target=client.run, args=(end,)) for client in clients]
        for thread in threads:
            thread.start()
        while time.monotonic() < end:
            samples.append(memory_mb(url))
            moments.append(time.monotonic() - end + seconds)
            time.sleep(SAMPLE_SECONDS)
        times = sorted(found.get())
        for process in (prober, *threads):
            process.join()
    own = [resident - kept for resident, kept in samples]
    quarter = len(own) // 4
    early, late = statistics.median(own[quarter : 2 * quarter]), statistics.median(own[-quarter:])
    p99 = times[int(0.99 * (len(times) - 1))]
    statuses = sum((client.statuses for client in clients), Counter[str]())
    failed = {name: count for name, count in statuses.items() if re.search(r" 5\d\d$", name)}
    results = {
        "clients": given.clients,
        "minutes": given.minutes,
        "resident MB at the end": round(samples[-1][0], 1),
        "kept for callers MB": round(samples[-1][1], 1),
        "MB besides, second quarter": round(early, 1),
        "MB besides, last quarter": round(late, 1),
        "growth": round(late / early, 3),
        "healthz median ms": round(statistics.median(times), 1),
        "healthz p99 ms": round(p99, 1),
        "healthz worst ms": round(times[-1], 1),
        "answers": dict(sorted(statuses.items())),
    }
    verdicts = {
        f"memory grows at most {GROWTH:g} times": late / early <= GROWTH,
        f"p99 of /healthz at most {HEALTH_MS:g} ms": p99 <= HEALTH_MS,
        f"no 5xx {failed or ''}".rstrip(): not failed,
    }
    if not given.json:
        print("    minute  resident MB  kept for callers MB  MB besides")
        for at in range(0, len(samples), max(1, len(samples) // ROWS)):
            resident, kept = samples[at]
            print(f"{moments[at] / 60:10.1f}  {resident:11.1f}  {kept:19.1f}  {own[at]:10.1f}")
    return 0 if report(results, verdicts, as_json=given.json) else 1


if __name__ == "__main__":
    sys.exit(main())
