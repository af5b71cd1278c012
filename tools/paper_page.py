"""The page of the repeated paper: its tables and figures, from what `repeat_paper.py` has made."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repeat_paper import Plan

STUDY = "## Figure 3: do FID and KL measure anything?"


def write_page(plan: Plan, page: Path) -> None:
    """All tables and figures on one page, the pictures beside it; what is missing is named."""
    pictures = page.parent / "results"
    pictures.mkdir(parents=True, exist_ok=True)
    sections = [_head(plan), *(_table_section(plan, number) for number in plan.tables)]
    study = plan.work / "figure-3" / "figure-2.json"
    if study.exists():
        shutil.copy(study.with_suffix(".png"), pictures / "paper-figure-3.png")
        sections.append(_study_section(json.loads(study.read_text(encoding="utf-8"))))
    else:
        sections.append(f"{STUDY}\n\nNot measured yet.")
    picture = plan.work / "figure-4" / "figure-4.png"
    shown = "Not drawn yet."
    if picture.exists():
        shutil.copy(picture, pictures / "paper-figure-4.png")
        shown = (
            "![Spectrograms of real clips and of sounds made from their captions]"
            "(results/paper-figure-4.png)"
        )
    sections.append(f"## Figure 4: real sounds and both decoders'\n\n{shown}")
    page.write_text("\n\n".join(sections) + "\n", encoding="utf-8")


def _table_section(plan: Plan, number: int) -> str:
    from diffsound.evaluation.paper_tables import paper_table

    path = plan.work / "tables" / str(number) / f"table-{number}.md"
    if path.exists():
        _, rest = path.read_text(encoding="utf-8").split("\n\n", 1)
    else:
        rest = "Not measured yet."
    note = f"**{plan.scale.note}.** " if plan.scale.note else ""
    ours = " (ours, not in the paper)" if number == 8 else ""
    return f"## Table {number}: {paper_table(number).title}{ours}\n\n{note}{rest.rstrip()}"


def _head(plan: Plan) -> str:
    scale = "" if plan.scale.name == "full" else f" --scale {plan.scale.name}"
    note = f"**{plan.scale.note}.** " if plan.scale.note else ""
    rows = ["| model | parameters | steps | minutes |", "| --- | --- | --- | --- |"]
    stages = [name for model in plan.models() for name in (model.codec, model.vocoder)]
    names = dict.fromkeys((*stages, *(model.name for model in plan.models())))
    runs = [name for name in names if (plan.work / name / "export").exists()]
    rows += [f"| {name} | {' | '.join(_facts(plan.work / name))} |" for name in runs]
    return (
        f"# The paper repeated\n\n{note}Made by `make paper DATA=…` (`python tools/repeat_paper.py "
        f"DATA{scale}`): the paper's method in every respect but size and data, measured by the "
        "paper's protocol. In each table the paper's figure stands in parentheses. Whether the "
        "order of the rows agrees is computed: a pair of rows counts as clear when its two "
        "intervals do not overlap.\n\n" + "\n".join(rows)
    )


def _facts(run: Path) -> tuple[str, str, str]:
    """Parameters, steps and minutes of a run."""
    from safetensors import safe_open

    from diffsound.training.run_files import read_log

    with safe_open(run / "export" / "model.safetensors", "np") as weights:
        shapes = [weights.get_slice(name).get_shape() for name in weights.keys()]  # noqa: SIM118
    log = read_log(run)
    minutes = max((entry.get("seconds", 0.0) for entry in log), default=0.0) / 60
    steps = max((entry["step"] for entry in log), default=0)
    return f"{sum(map(math.prod, shapes)) / 1e6:.1f} M", str(steps), f"{minutes:.0f}"


def _study_section(study: dict[str, Any]) -> str:
    rising = {
        metric: [kind for kind, found in study["rising"].items() if found.get(metric)]
        for metric in ("fid", "kl")
    }
    kinds = len(study["rising"])
    lines = [
        f"{metric.upper()} rises with every level of {len(found)} of {kinds} disturbances"
        + (f" ({', '.join(found)})" if 0 < len(found) < kinds else "")
        for metric, found in rising.items()
    ]
    agrees = all(len(found) == kinds for found in rising.values())
    return (
        f"{STUDY}\n\n"
        "![FID and KL over the strength of three disturbances](results/paper-figure-3.png)\n\n"
        f"{study['clips']} clips. {'; '.join(lines)}. In the paper both rise with all three: "
        f"this {'agrees' if agrees else 'agrees in part'}."
    )
