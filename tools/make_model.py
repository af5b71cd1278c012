"""Repeat the bundled model: from recordings to a bundle, one step after another.

    make model DATA=recordings                          # into runs/model
    python tools/make_model.py recordings --work runs/model
    python tools/make_model.py recordings --plan        # only say what would run, and how long

Every step is a `diffsound` command, shown before it runs, and every command goes on where it was
stopped: started again after a kill, this does only what is missing. The steps' settings are the
files of configs/small; HOURS below only tells how long they take.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Hours of one cloud core: taken when the bundled model was made, except those of ar, which are step
# times of a short run. docs/training.md repeats them. Told, not obeyed: every stage ends by its
# config, so another machine takes another time for the same model.
HOURS = {
    "prepare": 0.1,
    "scenes": 0.02,
    "scenes-short": 0.01,
    "codec": 1.2,
    "vocoder": 1.1,
    "decoder": 2.1,
    "ar": 1.4,
    "classifier": 0.9,
    "captioner": 1.3,
    "matcher": 1.9,
    "bundle": 0.0,
    "bundle-ar": 0.0,
}


@dataclass(frozen=True)
class Scale:
    """How large a model.

    configs: a folder of configs/. settings: overrides for every stage; mel: for those with a mel.
    defaults: what a generation uses unless told otherwise; chosen on the validation clips.
    """

    configs: str
    settings: tuple[str, ...] = ()
    mel: tuple[str, ...] = ()
    defaults: tuple[str, ...] = ()
    card: Path | None = None
    scenes: int | None = None  # so many instead of the recipe's number


SCALES = {
    "small": Scale(
        "small",
        defaults=(
            "num_inference_steps=14",
            "best_of=8",
            "chosen_after=0.4",
            "guidance_scale=2.5",
            "guided_share=0.6",
            "truncation=0.8",
            "layered=true",
            "level=-23",
            "backend=int8",
        ),
        card=ROOT / "src" / "diffsound" / "assets" / "small" / "README.md",
    ),
    # Tests: every step of the recipe in seconds, at the sample rate that `data prepare` gives.
    "tiny": Scale(
        "tiny",
        ("train.max_steps=2", "train.log=none"),
        ("mel={n_fft: 1024, hop_length: 256, n_mels: 32, fmin: 0.0, fmax: 11025.0}",),
        ("num_inference_steps=4",),
        scenes=4,
    ),
}


@dataclass(frozen=True)
class Step:
    """One command. done: a file that is there once it never needs to run again."""

    name: str
    command: tuple[str, ...]
    done: Path | None = None


def recipe(source: Path, work: Path, scale: Scale) -> Iterator[Step]:
    """The steps from recordings to bundles, in an order in which each finds what it needs."""
    data = source if (source / "index.json").exists() else work / "data"
    if data != source:
        yield Step("prepare", ("data", "prepare", str(source), "--out", str(data), "--full-band"))

    def train(name: str, stage: str, *settings: str) -> Step:
        mel = () if stage in ("decoder", "matcher") else scale.mel  # these hear tokens
        chosen = [part for value in (*scale.settings, *mel, *settings) for part in ("--set", value)]
        config = ROOT / "configs" / scale.configs / f"{name}.yaml"
        places = ("--config", str(config), "--data", str(data), "--run", str(work / name))
        return Step(name, ("train", stage, *places, *chosen))

    def bundle(name: str, decoder: str, *options: str) -> Step:
        parts = {"codec": "codec", "decoder": decoder, "vocoder": "vocoder"}
        parts |= {judge: judge for judge in ("captioner", "classifier", "matcher")}
        runs = [part for key, run in parts.items() for part in (f"--{key}", str(work / run))]
        more = ("--coverage", str(data), "--name", f"{scale.configs}{name.removeprefix('bundle')}")
        out = work / name
        return Step(
            name, ("bundle", "build", str(out), *runs, *more, *options), out / "config.json"
        )

    def mix(name: str, count: int, *options: str) -> Step:
        """Scenes of several events, for prompts of several."""
        out, scenes = work / name, str(count if scale.scenes is None else scale.scenes)
        chosen = [part for value in options for part in ("--set", value)]
        command = ("data", "mix", str(data), "--out", str(out), "--count", scenes, *chosen)
        return Step(name, command, out / "index.json")

    def mixed_in(name: str, share: float) -> str:
        return f"data.mix=[{{path: {work / name}, share: {share}}}]"

    yield mix(
        "scenes", 1800, "seconds=7.5", "events=[2, 3]", "background=0.35", "distance=0.12",
        "repetition=0.15", "together=0.25", "captions=8",
    )  # fmt: skip
    yield mix(
        "scenes-short", 900, "seconds=4.0", "events=[2, 2]", "background=0.3", "distance=0.1",
        "repetition=0.1", "together=0.2", "captions=8",
    )  # fmt: skip
    codec, voice = work / "codec", work / "vocoder"
    defaults = [part for value in scale.defaults for part in ("--default", value)]
    card = () if scale.card is None else ("--card", str(scale.card))
    yield train("codec", "codec")
    yield train("vocoder", "vocoder")
    yield train(
        "decoder", "decoder",
        f"codec={codec}", f"vocoder={voice}", mixed_in("scenes", 0.15),
    )  # fmt: skip
    yield train("ar", "decoder", f"codec={codec}", f"vocoder={voice}")
    yield train("classifier", "classifier")
    yield train("captioner", "captioner")
    yield train("matcher", "matcher", f"codec={codec}", mixed_in("scenes-short", 0.12))
    yield bundle("bundle", "decoder", *defaults, *card)
    yield bundle("bundle-ar", "ar")


def run_command(arguments: Sequence[str]) -> int:
    """`diffsound …` in a process of its own, which gives its memory back; its exit code."""
    return subprocess.run([sys.executable, "-m", "diffsound", *arguments], check=False).returncode


def run_steps(
    steps: Iterable[Step],
    run: Callable[[Sequence[str]], int] = run_command,
    say: Callable[[str], None] = print,
) -> int:
    """Run what is missing; the first exit code that is not 0 ends it."""
    for step in steps:
        if step.done is not None and step.done.exists():
            say(f"## {step.name}: there already")
            continue
        say(f"## {step.name}\ndiffsound {shlex.join(step.command)}")
        code = run(step.command)
        if code:
            say(f"{step.name} ended with exit code {code}; the same command goes on from here")
            return code
    return 0


def make_model(
    source: Path,
    work: Path,
    scale: Scale,
    run: Callable[[Sequence[str]], int] = run_command,
    say: Callable[[str], None] = print,
) -> int:
    """The whole recipe; the exit code of the step that failed, if one did."""
    work.mkdir(parents=True, exist_ok=True)
    code = run_steps(recipe(source.absolute(), work.absolute(), scale), run, say)
    if code == 0:
        say(f"the model is in {work / 'bundle'}")
    return code


def plan(source: Path, work: Path, scale: Scale) -> str:
    """The steps and their hours, without running any."""
    steps = list(recipe(source.absolute(), work.absolute(), scale))
    lines = [f"{step.name:>14} {HOURS[step.name]:5.1f} h" for step in steps]
    return "\n".join([*lines, f"{'in all':>14} {sum(HOURS[step.name] for step in steps):5.1f} h"])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="recordings, or a folder of `data prepare`")
    parser.add_argument(
        "--work", type=Path, default=Path("runs/model"), help="for all that is made"
    )
    parser.add_argument("--scale", choices=SCALES, default="small")
    parser.add_argument("--plan", action="store_true", help="only print the steps and their hours")
    given = parser.parse_args(arguments)
    if not given.source.exists():
        parser.error(f"there is nothing at {given.source}")
    if given.plan:
        print(plan(given.source, given.work, SCALES[given.scale]))
        return 0
    return make_model(given.source, given.work, SCALES[given.scale])


if __name__ == "__main__":
    sys.exit(main())
