"""Repeat the paper: train its method at a small size, measure it by its protocol, write one page.

    make paper DATA=recordings                              # into runs/paper, docs/paper-results.md
    python tools/repeat_paper.py recordings --work runs/paper
    python tools/repeat_paper.py recordings --scale short   # far less training; FID in 2 to 6
    python tools/repeat_paper.py recordings --scale quick   # an hour: fewer clips and sounds, too
    python tools/repeat_paper.py recordings --plan          # only say what would run, and how long
    python tools/repeat_paper.py recordings --tables 4 5    # only these, and what they need
    python tools/repeat_paper.py recordings --so-far        # only the page, from what is measured

Every step is a `diffsound` command, shown before it runs; started again after a kill, this does
only what is missing, down to the single cell of a table. What is trained is configs/repeat with the
settings of MODELS below; what is measured, and by how many sounds, is in SCALES.

Table 2 needs BERT for one row (--bert FOLDER) and has MiniLM where the paper has CLIP unless
--clip FOLDER names CLIP's text encoder. SPICE needs its jars (--corenlp FOLDER). What is missing is
left blank in the tables, which say so.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from make_model import ROOT, Step, run_command, run_steps
from paper_page import write_page

SHIPPED = ROOT / "src" / "diffsound" / "assets" / "small"
TABLES = (2, 3, 4, 5, 6, 7, 8)
MASK_RATES = ("0.1", "0.3", "0.5", "0.7")
FULL_BAND = ("mel.fmin=0.0", "mel.fmax=11025.0")  # the shipped codec's


@dataclass(frozen=True)
class Scale:
    """How much of everything.

    settings: by kind of stage; a decoder takes "decoder" and its config's name, a pre-training only
    "pretrain". n: of algorithm 3. common, tables: over COMMON, for all tables and for one. note:
    what the head of each table says of it.
    """

    name: str
    settings: dict[str, tuple[str, ...]] = field(default_factory=dict)
    scenes: int = 1200
    n: int = 20
    common: dict[str, Any] = field(default_factory=dict)
    tables: dict[int, dict[str, Any]] = field(default_factory=dict)
    study: tuple[str, ...] = ()
    note: str = ""
    judges: dict[str, str] = field(default_factory=dict)


# The paper has 494 clips of five captions each, and ten sounds a clip.
COMMON: dict[str, Any] = {"split": "valid", "clips": 300, "seconds": 5.0, "texts": 1, "samples": 1}
_CHEAP = ("train.precision=bf16", "valid_clips=16")
_STEPS = ("train.max_minutes=null", "train.warmup_steps=30")  # steps: a busy core is no clock
SCALES = {
    "full": Scale(
        "full",
        tables={2: {"texts": 5, "samples": 2}, 7: {"texts": 1, "samples": 10}},
    ),
    # For a busy core and an afternoon: enough clips for FID, far too little training.
    "short": Scale(
        "short",
        settings={
            "codec": (*_CHEAP, "train.max_steps=400", "loss.adversarial.start_steps=150"),
            "vocoder": (*_CHEAP, "train.max_steps=300"),
            "decoder": (*_CHEAP, *_STEPS, "train.max_steps=300"),
            "ar": ("train.max_steps=200", "train.validate_steps=50"),  # about Diffsound's time
            "pretrain": (*_CHEAP, *_STEPS),
        },
        scenes=400,
        n=4,
        tables={7: {"clips": 60, "samples": 5}, 8: {"clips": 60}},  # guidance and best of 3: 6-fold
        study=("--clips", "257"),
        note="A short run: models that have hardly learned",
    ),
    "quick": Scale(
        "quick",
        settings={
            "codec": ("train.max_steps=600", "loss.adversarial.start_steps=300"),
            "vocoder": ("train.max_steps=800",),
            "decoder": ("train.max_minutes=2",),
        },
        scenes=200,
        n=2,
        common={"clips": 40, "texts": 1},
        tables={7: {"clips": 20, "samples": 10}},
        study=("--clips", "60"),
        note="A quick look: models that have hardly learned, and few clips",
    ),
}


@dataclass(frozen=True)
class Model:
    """A decoder: its config in configs/repeat, its settings, and what it is trained on.

    begin: the model whose weights it starts from. codec: whose tokens. vocoder: of its bundle.
    decoder: the model whose decoder it uses (nothing is trained then).
    """

    name: str
    settings: tuple[str, ...] = ()
    config: str = "diffsound"
    begin: str | None = None
    codec: str = "codec"
    vocoder: str = "vocoder"
    decoder: str | None = None
    matcher: bool = False

    @property
    def pretraining(self) -> bool:
        """Whether it is only a start for others, on scenes with texts made of labels."""
        return self.config == "pretrain"


# From the paper's method to the shipped one (table 8), a change at a time.
_LOSS = ("decoder.loss={variant: simplified}",)
_QUARTER = "decoder.schedule={kind: quarter, transition: mask"
_MASK = (*_LOSS, f"{_QUARTER}}}")
_GUIDED = (*_MASK, "text_dropout=0.1")
_COLUMNS = ("decoder.position=column", "decoder.rows=8", "decoder.codebook_size=512")
_CODEC = (*_GUIDED, *_COLUMNS)
_ROWS = (*_CODEC, f"{_QUARTER}, row_shares: [40, 16, 11, 9, 7, 6, 6, 5]}}")

MODELS = (
    Model("diffsound"),  # also mu-0.9, trained-100, plain, and the ladder's first rung
    Model("ar", config="ar"),
    Model("ar-caps-bert", config="ar", codec="codec-caps"),
    Model("ar-caps", config="ar", codec="codec-caps"),
    Model("diffsound-caps", codec="codec-caps"),
    Model("u", ("decoder.schedule.transition=uniform",)),
    *(Model(f"mu-{rate}", (f"decoder.schedule.gamma_end={rate}",)) for rate in MASK_RATES),
    Model("m", ("decoder.schedule.transition=mask",)),
    Model("trained-25", ("decoder.timesteps=25",)),
    Model("trained-50", ("decoder.timesteps=50",)),
    Model("pretrain", config="pretrain"),  # without the curriculum
    Model("pretrain-c", config="pretrain"),
    Model("pretrained", begin="pretrain"),
    Model("curriculum", begin="pretrain-c"),
    Model("loss", _LOSS),
    Model("schedule", _MASK),
    Model("guidance", _GUIDED),
    Model("codec-rows", _CODEC, codec="shipped", vocoder="vocoder-full"),
    Model("rows", _ROWS, codec="shipped", vocoder="vocoder-full", matcher=True),
    Model("istft", codec="shipped", vocoder="shipped", decoder="rows", matcher=True),
)
BY_NAME = {model.name: model for model in MODELS}

# The bundle of each row, where it has another name than the row.
BUNDLES: dict[int, dict[str, str]] = {
    2: {
        "ar-caps-bert": "ar-caps-bert", "ar-caps-clip": "ar-caps", "ar-audioset-clip": "ar",
        "diffsound-caps-clip": "diffsound-caps", "diffsound-audioset-clip": "diffsound",
    },
    3: {"ar": "ar", "diffsound": "diffsound"},
    4: {"u": "u", **{f"mu-{r}": f"mu-{r}" for r in MASK_RATES}, "mu-0.9": "diffsound", "m": "m"},
    5: {"trained-25": "trained-25", "trained-50": "trained-50", "trained-100": "diffsound"},
    6: {"plain": "diffsound", "pretrained": "pretrained", "curriculum": "curriculum"},
    7: {"ar": "ar", "diffsound": "diffsound"},
    8: {
        "diffsound": "diffsound", "loss": "loss", "schedule": "schedule", "guidance": "guidance",
        "codec": "codec-rows", "rows": "rows", "vocoder": "istft",
    },
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """What to repeat, from what, and where to."""

    source: Path
    work: Path
    scale: Scale
    tables: tuple[int, ...] = TABLES
    captioned: tuple[str, ...] = ()  # sources whose captions the decoders learn; none: all
    bert: Path | None = None
    clip: Path | None = None
    corenlp: Path | None = None

    @property
    def data(self) -> Path:
        prepared = (self.source / "index.json").exists()
        return self.source if prepared else self.work / "data"

    def place(self, name: str) -> Path:
        """A codec's or vocoder's run, or the shipped bundle."""
        return SHIPPED if name == "shipped" else self.work / name

    def models(self) -> list[Model]:
        """The decoders that the tables need, each after the one it begins from."""
        wanted = {name for number in self.tables for name in BUNDLES[number].values()}
        if self.bert is None:
            wanted.discard("ar-caps-bert")
        for model in reversed(MODELS):
            if model.name in wanted:
                wanted |= {other for other in (model.begin, model.decoder) if other is not None}
        return [model for model in MODELS if model.name in wanted]

    def bundles(self, number: int) -> dict[str, str]:
        made = {model.name for model in self.models()}
        return {
            row: str(self.work / "bundles" / name)
            for row, name in BUNDLES[number].items()
            if name in made
        }


def recipe(plan: Plan) -> Iterator[Step]:
    """All commands, table by table, in an order in which each finds what it needs."""
    if plan.data != plan.source:
        command = ("data", "prepare", str(plan.source), "--out", str(plan.data), "--full-band")
        yield Step("prepare", command)
    made: set[str] = set()
    for number in plan.tables:
        for step in _stages(plan, replace(plan, tables=(number,)).models()):
            if step.name not in made:
                made.add(step.name)
                yield step
        yield _table(plan, number)
    yield from _figures(plan)


def _stages(plan: Plan, models: Sequence[Model]) -> Iterator[Step]:
    """What some decoders need, their training, and their bundles."""
    work, scale = plan.work, plan.scale
    if any(model.pretraining for model in models):
        mix = ("data", "mix", str(plan.data), "--out", str(work / "scenes"), "--count")
        how = ("events=[1, 2]", "background=0.0", "distance=0.0", "repetition=0.0")
        chosen = (str(scale.scenes), "--seconds", "5.0", *_set(how))
        yield Step("scenes", (*mix, *chosen), work / "scenes" / "index.json")
    for name in dict.fromkeys(model.codec for model in models):
        if name != "shipped":
            yield _train(plan, name, "codec", *_captioned(plan, name == "codec-caps"))
    for name in dict.fromkeys(model.vocoder for model in models if not model.pretraining):
        if name != "shipped":
            yield _train(plan, name, "vocoder", *(FULL_BAND if name == "vocoder-full" else ()))
    for model in models:
        if model.decoder is None:
            yield _decoder(plan, model)
        if not model.pretraining:
            yield _bundle(plan, model)


def _train(plan: Plan, name: str, kind: str, *settings: str) -> Step:
    config = ROOT / "configs" / "repeat" / f"{kind}.yaml"
    places = ("--config", str(config), "--data", str(plan.data), "--run", str(plan.work / name))
    chosen = (*settings, *plan.scale.settings.get(kind, ()))
    return Step(name, ("train", kind, *places, *_set(chosen)))


def _decoder(plan: Plan, model: Model) -> Step:
    kinds = ("pretrain",) if model.pretraining else ("decoder", model.config)
    settings = [setting for kind in kinds for setting in plan.scale.settings.get(kind, ())]
    settings += [f"codec={plan.place(model.codec)}", *model.settings]
    n = plan.scale.n
    if model.name == "pretrain-c":
        settings += [f"curriculum.n={n}", f"train.max_epochs={3 * n}"]
    elif model.name == "pretrain":
        # As many clips: n epochs of one half of the scenes and 2n of the other are 1.5n of all.
        settings += ["curriculum=null", f"train.max_epochs={math.ceil(1.5 * n)}"]
    if model.begin is not None:
        settings.append(f"init={plan.work / model.begin}")
    if model.name == "ar-caps-bert":
        settings.append(f"text_encoder={{kind: bert, name: {plan.bert}}}")
    elif plan.clip is not None:
        settings.append(f"text_encoder={{kind: clip, name: {plan.clip}}}")
    data = plan.work / "scenes" if model.pretraining else plan.data
    settings += _captioned(plan, not model.pretraining)
    config = ROOT / "configs" / "repeat" / f"{model.config}.yaml"
    places = ("--config", str(config), "--data", str(data), "--run", str(plan.work / model.name))
    return Step(model.name, ("train", "decoder", *places, *_set(settings)))


def _captioned(plan: Plan, only: bool) -> list[str]:
    """The setting that keeps a run to the captioned clips."""
    return [f"data.sources=[{', '.join(plan.captioned)}]"] if only and plan.captioned else []


def _bundle(plan: Plan, model: Model) -> Step:
    out = plan.work / "bundles" / model.name
    decoder = plan.work / (model.decoder or model.name)
    parts = ("--codec", str(plan.place(model.codec)), "--decoder", str(decoder))
    voice = ("--vocoder", str(plan.place(model.vocoder)))
    matcher = ("--matcher", str(SHIPPED / "matcher")) if model.matcher else ()
    command = ("bundle", "build", str(out), *parts, *voice, *matcher)
    return Step(f"{model.name}'s bundle", command, out / "config.json")


def table_config(plan: Plan, number: int) -> dict[str, Any]:
    """The settings of `diffsound evaluate table`."""
    scale = plan.scale
    config = {"data": str(plan.data), **COMMON, **scale.common, **scale.tables.get(number, {})}
    config |= {"bundles": plan.bundles(number), **scale.judges}
    config["shared"] = str(plan.work / "tables" / "shared")  # table 7 ranks sounds of table 2
    if plan.captioned:
        config["sources"] = list(plan.captioned)
    if plan.corenlp is not None:
        config["corenlp"] = str(plan.corenlp)
    return config


def _table(plan: Plan, number: int) -> Step:
    folder = plan.work / "tables"
    config = folder / f"table-{number}.yaml"
    command = ("evaluate", "table", str(number), "--config", str(config), "--out")
    return Step(f"table {number}", (*command, str(folder / str(number))))


def _figures(plan: Plan) -> Iterator[Step]:
    """Figure 3: what FID and KL measure; figure 4: real clips and both decoders' sounds."""
    judge = plan.scale.judges.get("classifier")
    given = () if judge is None else ("--classifier", judge)
    study = plan.work / "figure-3"
    where = ("--data", str(plan.data), "--split", "valid")
    command = ("evaluate", "study", *where, "--out", str(study), *given, *plan.scale.study)
    yield Step("figure 3", command, study / "figure-2.json")
    runs = []
    for name in ("diffsound", "ar"):
        if name not in {model.name for model in plan.models()}:
            return
        out = plan.work / "figure-4" / name
        bundle = str(plan.work / "bundles" / name)
        amount = ("--clips", "4", "--seconds", "5", "--no-copies")
        plain = ("guidance_scale=1.0", "truncation=1.0", *["stride=1"] * (name == "diffsound"))
        command = ("evaluate", "run", bundle, *where, "--out", str(out), *amount, *given)
        command = (*command, *_set(plain))
        yield Step(f"figure 4, {name}", command, out / "report.json")
        runs += ["--run", f"{name}={out}"]
    picture = plan.work / "figure-4" / "figure-4.png"
    yield Step("figure 4", ("evaluate", "figure", str(picture), *runs), picture)


def _set(settings: Sequence[str]) -> list[str]:
    return [part for value in settings for part in ("--set", value)]


def repeat(
    plan: Plan,
    page: Path,
    run: Callable[[Sequence[str]], int] = run_command,
    say: Callable[[str], None] = print,
) -> int:
    """Everything that is missing, then the page; the exit code of the step that failed, if any."""
    plan = replace(plan, source=plan.source.absolute(), work=plan.work.absolute())
    (plan.work / "tables").mkdir(parents=True, exist_ok=True)
    for number in plan.tables:
        text = yaml.safe_dump(table_config(plan, number), sort_keys=False)
        (plan.work / "tables" / f"table-{number}.yaml").write_text(text, encoding="utf-8")
    code = run_steps(recipe(plan), run, say)
    if code == 0:
        write_page(plan, page)
        say(f"the page is {page}")
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="recordings, or a folder of `data prepare`")
    parser.add_argument(
        "--work", type=Path, default=Path("runs/paper"), help="for all that is made"
    )
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "paper-results.md")
    parser.add_argument("--scale", choices=SCALES, default="full", help="how much of everything")
    parser.add_argument("--plan", action="store_true", help="only print the steps")
    parser.add_argument(
        "--so-far", action="store_true", help="only write the page, from what is measured"
    )
    parser.add_argument("--tables", type=int, nargs="+", choices=TABLES, default=TABLES)
    parser.add_argument(
        "--captioned", default="esc50",
        help="sources whose captions the decoders learn, with commas between; all: every clip",
    )  # fmt: skip
    for name, what in (
        ("bert", "BERT's folder, for table 2"),
        ("clip", "CLIP's folder, in MiniLM's place"),
        ("corenlp", "the folder of SPICE's jars"),
    ):
        parser.add_argument(f"--{name}", type=Path, help=what)
    given = parser.parse_args(arguments)
    for place in (given.source, given.bert, given.clip, given.corenlp):
        if place is not None and not place.exists():
            parser.error(f"there is nothing at {place}")
    captioned = () if given.captioned == "all" else tuple(given.captioned.split(","))
    plan = Plan(
        given.source, given.work, SCALES[given.scale],
        tuple(sorted(set(given.tables))), captioned, given.bert, given.clip, given.corenlp,
    )  # fmt: skip
    if given.plan:
        full = given.scale == "full"
        known = yaml.safe_load((ROOT / "configs" / "repeat" / "hours.yaml").read_text("utf-8"))
        print(plan_text(plan, known if full else None))
        return 0
    if given.so_far:
        write_page(plan, given.page)
        return 0
    return repeat(plan, given.page)


def plan_text(plan: Plan, hours: dict[str, float] | None) -> str:
    """The steps, and their hours if they are known, without running any."""
    steps = list(recipe(plan))
    if hours is None:
        return "\n".join(step.name for step in steps)
    spent = [hours.get(_kind(step), 0.0) for step in steps]
    lines = [f"{step.name:>24} {time:6.2f} h" for step, time in zip(steps, spent, strict=True)]
    return "\n".join([*lines, f"{'in all':>24} {sum(spent):6.2f} h"])


def _kind(step: Step) -> str:
    """The entry of hours.yaml for a step."""
    if step.command[0] == "train":
        return (
            "pretrain"
            if step.name.startswith("pretrain") and step.name != "pretrained"
            else (step.command[1])
        )
    return step.name


if __name__ == "__main__":
    sys.exit(main())
