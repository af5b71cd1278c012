"""Crash loops and failing disks: whatever is killed or fails is resumed to the same bytes.

Each loop kills a command at a random place, looks at what it left, and runs it again in the same
folder, until it has been killed often enough. DIFFSOUND_ATTACK=10000 makes the loops longer.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import soundfile

from attack_support import EXAMPLES, tally
from crash_support import Ending, ForkServer, Plan
from diffsound.audio.mel import MelConfig
from diffsound.batch.manifest import read_manifest
from diffsound.data.clip import PreparedClip, PrepareSettings
from diffsound.data.prepare import write_clips
from diffsound.data.record import AudioLocation, Record
from diffsound.data.shards import ClipsIndex, read_index, read_sidecar
from diffsound.files import REPLACING, sha256, sweep
from diffsound.model.checks import copy_bundle, verify
from diffsound.training import run_files
from diffsound.weights import load_export

TINY = Path(__file__).parents[2] / "configs" / "tiny"
RATE = 8000
MEL = MelConfig(n_fft=256, hop_length=64, n_mels=32, fmin=0.0, fmax=4000.0, sample_rate=RATE)
KILLS = EXAMPLES // 200 or 4  # of each command
FAULTS = EXAMPLES // 100 or 6
STAGES = ("codec", "decoder", "vocoder", "classifier", "captioner", "matcher")
STEPS = ("max_steps=6", "checkpoint_steps=2", "validate_steps=3", "log=none")


class Command:
    """A command line that writes the folder `out`, and what must hold of that folder."""

    name = ""

    def arguments(self, inputs: Path, out: Path) -> list[str]:
        raise NotImplementedError

    def ended_well(self, ending: Ending) -> bool:
        return ending.code == 0

    def begin(self, inputs: Path, out: Path) -> None:
        """What is there before the first run."""

    def check(self, out: Path, whole: Path) -> None:
        """What must hold after every interruption; whole: the folder of a run without any."""

    def same(self, out: Path, whole: Path) -> None:
        """What must hold at the end: the same files, and none besides."""
        assert contents(out) == contents(whole)


class Prepare(Command):
    name = "data prepare"

    def arguments(self, inputs: Path, out: Path) -> list[str]:
        return ["data", "prepare", str(inputs / "sounds"), "--out", str(out), "--quiet",
                "--valid-share", "0.3", "--clips-per-shard", "3", "--engine", "serial"]  # fmt: skip

    def check(self, out: Path, whole: Path) -> None:
        for path in out.glob("clips-*.tar"):
            assert sha256(path) == sha256(whole / path.name)
            sidecar = read_sidecar(path)
            assert sidecar is None or sidecar["sha256"] == sha256(path)
        index = read_index(ClipsIndex, out) if out.exists() else None
        if index is not None and index.complete:
            assert (out / "index.json").read_bytes() == (whole / "index.json").read_bytes()

    def same(self, out: Path, whole: Path) -> None:
        sweep(out)  # it leaves new ones alone: another machine may be writing them
        super().same(out, whole)


class Batch(Command):
    name = "batch"

    def arguments(self, inputs: Path, out: Path) -> list[str]:
        return ["batch", str(inputs / "prompts.jsonl"), "--out", str(out), "--quiet",
                "--bundle", str(inputs / "bundle"), "--workers", "1"]  # fmt: skip

    def check(self, out: Path, whole: Path) -> None:
        for path in out.glob("[!.]*.wav"):
            assert sha256(path) == sha256(whole / path.name)
        for name, entry in read_manifest(out).items():
            assert entry["sha256"] == sha256(out / name)


class Build(Command):
    name = "bundle build"

    def arguments(self, inputs: Path, out: Path) -> list[str]:
        source = str(inputs / "bundle")
        return ["bundle", "build", str(out), "--codec", source, "--decoder", source,
                "--vocoder", source, "--name", "built",
                "--captioner", str(inputs / "captioner")]  # fmt: skip

    def check(self, out: Path, whole: Path) -> None:
        if (out / "config.json").exists() or (out / REPLACING).exists():
            assert verify(out) == []

    def ended_well(self, ending: Ending) -> bool:
        """A kill after the decision leaves a finished bundle, which is not built again."""
        return super().ended_well(ending) or "already holds a bundle" in ending.output


class Rebuild(Build):
    """Another bundle in the place of an old one: always one of them, whole."""

    name = "bundle build in place"

    def arguments(self, inputs: Path, out: Path) -> list[str]:
        return [*super().arguments(inputs, out), "--no-half", "--overwrite"]

    def begin(self, inputs: Path, out: Path) -> None:
        copy_bundle(inputs / "bundle", out)

    def check(self, out: Path, whole: Path) -> None:
        assert verify(out) == []


class Train(Command):
    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.name = f"train {stage}"

    def arguments(self, inputs: Path, out: Path) -> list[str]:
        line = ["train", self.stage, "--config", str(TINY / f"{self.stage}.yaml"),
                "--data", str(inputs / "data"), "--run", str(out)]  # fmt: skip
        settings = [f"train.{step}" for step in STEPS]
        if self.stage in ("decoder", "matcher"):
            settings.append(f"codec={inputs / 'codec'}")
        return [*line, *(word for setting in settings for word in ("--set", setting))]

    def check(self, out: Path, whole: Path) -> None:
        if not out.exists():
            return
        for step in run_files.checkpoint_steps(out):
            run_files.verify(run_files.folder_of(out, step))
        if (out / "export").exists():
            load_export(out)

    def same(self, out: Path, whole: Path) -> None:
        last = run_files.checkpoint_steps(whole)[-1]
        assert run_files.checkpoint_steps(out)[-1] == last
        for folder in (f"step-{last:08d}", "export"):
            for path in (whole / folder).glob("*.safetensors"):
                assert sha256(out / folder / path.name) == sha256(path), path
        assert not list(out.glob(".*"))


COMMANDS = {
    command.name: command
    for command in (Prepare(), Batch(), Build(), Rebuild(), *map(Train, STAGES))
}


def noise(number: int) -> np.ndarray:
    return 0.1 * np.random.default_rng(number).standard_normal(4000)


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): sha256(path) for path in folder.rglob("*") if path.is_file()
    }


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    server = ForkServer(tmp_path_factory.mktemp("scratch"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def inputs(
    forks: ForkServer, tiny_folder: Path, captioner_run: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:  # fmt: skip
    """Sounds, prepared data, prompts, a bundle and a codec."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "sounds").mkdir()
    for number, name in enumerate("abcdefghijkl"):
        soundfile.write(folder / "sounds" / f"noise {name}.wav", noise(number), RATE)
    rows = [{"prompt": f"noise {seed}", "seed": seed, "duration": 0.5} for seed in range(6)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "prompts.jsonl").write_text(text, encoding="utf-8")
    (folder / "bundle").symlink_to(tiny_folder)
    (folder / "captioner").symlink_to(captioner_run)
    clips = [
        PreparedClip(
            Record(
                id=f"clip-{number}", audio=AudioLocation(path=""), captions=(f"a {label}",),
                labels=(label,), split="valid" if number > 11 else "train", licence="cc0",
            ),
            (noise(number) * 32767).astype(np.int16),
            {},
        )
        for number, label in enumerate(["tone", "noise"] * 8)
    ]  # fmt: skip
    write_clips(folder / "data", clips, PrepareSettings(mel=MEL), source="synthetic")
    finish(forks, Train("codec"), folder, folder / "codec")
    return folder


def finish(forks: ForkServer, command: Command, inputs: Path, out: Path) -> Ending:
    ending = forks.run(command.arguments(inputs, out), Plan(str(out)))
    assert command.ended_well(ending), ending.output
    return ending


@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_command_is_resumed_to_the_same_bytes(
    name: str, forks: ForkServer, inputs: Path, tmp_path: Path
) -> None:
    command, whole = COMMANDS[name], tmp_path / "whole"
    command.begin(inputs, whole)
    reference = finish(forks, command, inputs, whole)
    places = random.Random(f"{name} {EXAMPLES}")
    kills = folders = 0
    while kills < KILLS:
        out = tmp_path / f"out-{folders}"
        command.begin(inputs, out)
        while True:
            if kills % 2:
                plan = Plan(str(out), kill_after=places.uniform(0, reference.seconds))
            else:
                change = places.randint(1, reference.counts["change"])
                plan = Plan(str(out), kill_at_change=change)
            ending = forks.run(command.arguments(inputs, out), plan)
            command.check(out, whole)
            if not ending.was_killed:
                assert command.ended_well(ending), ending.output
                break
            kills += 1
            if kills >= KILLS:
                finish(forks, command, inputs, out)
                break
        command.same(out, whole)
        folders += 1
    tally(f"crash: {name}", kills=kills, finished=folders)


# All stages save with the same code: the long run goes through each of them.
@pytest.mark.parametrize("name", COMMANDS if EXAMPLES else [*COMMANDS][:5])
def test_a_failing_disk_is_one_line_and_the_next_run_gives_the_same_bytes(
    name: str, forks: ForkServer, inputs: Path, tmp_path: Path
) -> None:
    command, whole = COMMANDS[name], tmp_path / "whole"
    command.begin(inputs, whole)
    reference = finish(forks, command, inputs, whole)
    places = random.Random(f"{name} {EXAMPLES}")
    errors = [("ENOSPC", "write"), ("EIO", "write"), ("ENOSPC", "create"), ("EIO", "fsync"),
              ("EIO", "rename"), ("EIO", "read")]  # fmt: skip
    refused = 0
    for trial in range(FAULTS):
        out = tmp_path / f"out-{trial}"
        command.begin(inputs, out)
        fault, operation = errors[trial % len(errors)]
        number = places.randint(1, max(1, reference.counts.get(operation, 0)))
        plan = Plan(str(out), fault=fault, operation=operation, number=number)
        ending = forks.run(command.arguments(inputs, out), plan)
        place = f"{fault} at {operation} {number}: {ending.output}"
        assert ending.code in (0, 2), place
        assert "Traceback" not in ending.output, place
        command.check(out, whole)
        assert not list(out.rglob(".*")), place  # what fails cleans up
        refused += ending.code == 2
        if ending.code == 2:
            finish(forks, command, inputs, out)
        command.same(out, whole)
    command.begin(inputs, tmp_path / "s")
    short = forks.run(command.arguments(inputs, tmp_path / "s"), Plan(str(tmp_path), fault="short"))
    assert short.code == 0, short.output
    command.same(tmp_path / "s", whole)
    tally(f"fault: {name}", faults=FAULTS, refused=refused)


def test_a_killed_server_serves_the_same_sounds_again(
    forks: ForkServer, inputs: Path, tmp_path: Path
) -> None:
    """It is killed while it starts and while it generates; it keeps nothing on the disk."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = ["serve", "--bundle", str(inputs / "bundle"), "--port", port]
    answers: Counter[bytes] = Counter()
    over = threading.Event()

    def ask() -> None:
        body = {"prompt": "rain", "seed": 7, "duration": 2}
        while not over.is_set():
            try:
                url = f"http://127.0.0.1:{port}/v1/generate"
                answer = httpx.post(url, json=body, timeout=60)
            except httpx.HTTPError:
                time.sleep(0.02)
                continue
            assert answer.status_code in (200, 503)  # it may still be loading
            if answer.status_code == 200:
                answers[answer.content] += 1

    def until_answered() -> None:
        before, deadline = answers.total(), time.monotonic() + 120
        while answers.total() == before:
            assert time.monotonic() < deadline, "no answer"
            time.sleep(0.005)

    before = {path.name for path in forks.scratch.iterdir()}
    places = random.Random(EXAMPLES)
    clients = [threading.Thread(target=ask) for _ in range(2)]
    for client in clients:
        client.start()
    try:
        for kill in range(KILLS + 1):
            started = forks.start(command, Plan(str(tmp_path)))
            if kill == KILLS or places.random() < 0.7:
                until_answered()
            time.sleep(places.uniform(0, 0.5))
            os.kill(started, signal.SIGTERM if kill == KILLS else signal.SIGKILL)
            ending = forks.wait()
            assert ending.code == (0 if kill == KILLS else -signal.SIGKILL), ending.output
            assert {path.name for path in forks.scratch.iterdir()} - before <= {"output", "counts"}
    finally:
        over.set()
        for client in clients:
            client.join()
    assert len(answers) == 1
    tally("crash: serve", kills=KILLS, answers=answers.total())
