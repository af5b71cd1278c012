"""The server under load: micro-batched against one sound at a time.

    python benchmarks/server_load.py [--bundle DIR] [--clients 8] [--seconds 60] [--json] [--quick]

Both servers run in the same minutes, in turns, on the same requests, so that only their ratio
counts. Targets: no answer but 200 and 429; throughput of micro-batching at least 1.4 times that of
one at a time. Latencies (median, p95) are reported. Ends with exit code 1 when a target is missed.
`--quick` only shows that it works: its figures say nothing. `server_soak.py` watches memory.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx

PROMPTS = (
    "a dog barks in the distance",
    "rain on a tin roof",
    "footsteps on gravel, then a door creaks",
    "birds chirp in the morning",
)
ONE_AT_A_TIME = ("--lanes", "1", "--max-batch", "1")
RATIO = 1.4  # at least


@dataclass
class Load:
    """What the clients saw of one server."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)

    @property
    def throughput(self) -> float:
        return len(self.latencies) / self.seconds

    def report(self) -> dict[str, object]:
        ordered = sorted(self.latencies)
        return {
            "requests": len(ordered),
            "per minute": round(60 * self.throughput, 1),
            "median s": round(statistics.median(ordered), 2),
            "p95 s": round(ordered[int(0.95 * (len(ordered) - 1))], 2),
            "statuses": dict(self.statuses),
        }


@contextmanager
def server(bundle: str | None, *options: str) -> Iterator[str]:
    """`diffsound serve` on a free port; gives its address once it is ready."""
    command = [sys.executable, "-m", "diffsound", "serve", "--port", "0", *options]
    if bundle is not None:
        command += ["-b", bundle]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"http://[\d.:]+", line):
                break
        else:
            raise SystemExit("the server did not start; see the lines above")
        # Its log must be read, or the pipe fills and it waits.
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield found[0]
    finally:
        process.terminate()
        process.wait()


def press(url: str, load: Load, clients: int, seconds: float, body: dict[str, object]) -> None:
    """Let `clients` ask for one sound after another for `seconds`; adds to `load`."""
    end = time.monotonic() + seconds
    seeds, lock = count(), threading.Lock()

    def ask() -> None:
        with httpx.Client(timeout=600) as client:
            while time.monotonic() < end:
                with lock:
                    seed = next(seeds)
                start = time.monotonic()
                prompt = {"prompt": PROMPTS[seed % len(PROMPTS)], "seed": seed}
                answer = client.post(f"{url}/v1/generate", json=body | prompt)
                with lock:
                    load.statuses[answer.status_code] += 1
                    if answer.status_code == 200:
                        load.latencies.append(time.monotonic() - start)
                if answer.status_code == 429:
                    time.sleep(float(answer.headers["Retry-After"]))

    start = time.monotonic()
    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    load.seconds += time.monotonic() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", help="a bundle's folder; the packaged one if missing")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each of the two servers")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--duration", type=float, default=5.0, help="of each sound")
    parser.add_argument("--steps", type=int, help="sampling steps; the bundle's own if missing")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a few seconds and short sounds")
    given = parser.parse_args()
    if given.quick:
        given.seconds, given.turns, given.duration, given.steps = 5.0, 1, 0.5, 2
    body: dict[str, object] = {"duration": given.duration}
    if given.steps is not None:
        body["num_inference_steps"] = given.steps
    single, batched = Load(), Load()
    with server(given.bundle, *ONE_AT_A_TIME) as plain, server(given.bundle) as grouped:
        for _ in range(given.turns):
            for url, load in ((plain, single), (grouped, batched)):
                press(url, load, given.clients, given.seconds / given.turns, body)
    ratio = batched.throughput / single.throughput
    bad = sorted((single.statuses + batched.statuses).keys() - {200, 429})
    results = {
        "one at a time": single.report(),
        "micro-batched": batched.report(),
        "ratio": round(ratio, 2),
    }
    verdicts = {
        f"micro-batching at least {RATIO:g} times as fast": ratio >= RATIO,
        f"no answer but 200 and 429 {bad or ''}".rstrip(): not bad,
    }
    held = report(results, verdicts, as_json=given.json)
    return 0 if given.quick or held else 1


def report(results: Mapping[str, Any], verdicts: Mapping[str, bool], *, as_json: bool) -> bool:
    """Print the figures, then which targets are met; True if all are."""
    if as_json:
        print(json.dumps({**results, **verdicts}))
        return all(verdicts.values())
    width = max(map(len, results))
    for name, value in results.items():
        print(f"{name:>{width}}  {value}")
    for name, met in verdicts.items():
        print(f"{'PASS' if met else 'FAIL'}  {name}")
    return all(verdicts.values())


if __name__ == "__main__":
    sys.exit(main())
