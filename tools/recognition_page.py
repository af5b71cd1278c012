"""Write docs/recognition.md from a report of `diffsound evaluate recognise`.

    diffsound evaluate recognise BUNDLE --data data/corpus --out eval/recognised
    python tools/recognition_page.py eval/recognised

The figures of every row, the ten worst classes with their spectrograms, and the confusion table.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from diffsound.audio.io import read_audio
from diffsound.audio.mel import MelConfig, MelFrontEnd
from diffsound.audio.spectrogram import spectrogram_image
from diffsound.errors import DiffsoundError, InputError
from diffsound.files import atomic_write
from diffsound.generation.settings import slug

ROOT = Path(__file__).resolve().parents[1]
FOLDER = "recognition"
WORST, TAKES = 10, 3
PANEL, GAP, COLOURS = (200, 90), 6, 48
NAMES = {
    "real": "real held-out clips",
    "vocoder": "the same through the vocoder",
    "codec": "… through codec and vocoder",
    "generated": "generated",
}
CLEAN = {
    "clipped_share": "clipped",
    "silence_share": "silent frames",
    "silent_clips": "silent clips",
    "cut_share": "cut off",
    "seam_ratio": "steps at columns",
    "offset_db": "offset, dB",
    "spectrum_distance_db": "spectrum to real, dB",
    "loudness_spread_lu": "loudness spread, LU",
}

PAGE = """# Is it recognised?

{sentences} sentences in wordings that training has not seen, {seconds:g} s each, heard by a
classifier that was trained on real clips only; intervals of 95 %. Made from the report of
`diffsound evaluate recognise` by `python tools/recognition_page.py`.

{scores}
{ear}
{clean}

The real clips' spectrum is every second clip of a class against the others. "Cut off" is what ends
within the clip and not by dying away. "Steps at columns" is how much the mels change from column to
column, to their change within columns: 1 where no edge shows.

## The ten worst classes

A real clip first, then three generated sounds.
{worst}
## Confusion

![Which class is heard as which, for real and generated sounds]({folder}/confusion.png)
"""


def make_page(report_folder: Path, out: Path) -> Path:
    """The page and its pictures in `out`, from the folder of a report; returns the page."""
    try:
        report = json.loads((report_folder / "report.json").read_text(encoding="utf-8"))
        confusion = (report_folder / "confusion.png").read_bytes()
    except (OSError, ValueError) as error:
        raise InputError(
            f"{report_folder} has no report of `evaluate recognise`: {error}"
        ) from None
    fresh = out / f".{FOLDER}-new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    (fresh / "confusion.png").write_bytes(confusion)
    front_end = MelFrontEnd(MelConfig.model_validate(report["protocol"]["mel"]))
    worst = [_class(entry, report, report_folder, fresh, front_end) for entry in _worst(report)]
    text = PAGE.format(
        sentences=report["protocol"]["sentences"],
        seconds=report["protocol"]["settings"]["seconds"],
        scores=_scores(report),
        ear=_ear(report.get("ear")),
        clean=_clean(report["cleanliness"]),
        worst="".join(worst),
        folder=FOLDER,
    )
    shutil.rmtree(out / FOLDER, ignore_errors=True)
    fresh.rename(out / FOLDER)
    page = out / "recognition.md"
    with atomic_write(page) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return page


def _worst(report: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return sorted(report["classes"], key=lambda entry: entry["generated"]["top-1"])[:WORST]


def _scores(report: Mapping[str, Any]) -> str:
    lines = ["| what it hears | clips | top-1 | top-5 |", "| --- | --- | --- | --- |"]
    for row, found in report["rows"].items():
        shares = [found["scores"][name] for name in ("top-1", "top-5")]
        cells = [f"{s['value']:.3f} [{s['low']:.2f}, {s['high']:.2f}]" for s in shares]
        lines.append(f"| {NAMES[row]} | {found['clips']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _ear(found: Mapping[str, Any] | None) -> str:
    """The same rows by an outside ear, if the report has one."""
    if found is None:
        return ""
    lines = ["| what it hears | clips | top-1 | top-5 | Fréchet |", "| --- " * 5 + "|"]
    real = found["probe"] | {"clips": found["probe"]["held"]}
    rows = {"real clips its probe was not fitted on": real}
    rows |= {NAMES[row]: one for row, one in found["rows"].items()}
    for told, one in rows.items():
        figures = (f"{score['value']:.3g}" for score in one["scores"].values())
        lines.append(f"| {told} | {one['clips']} | {' | '.join(figures)} |")
    about = (
        f"By an outside ear, `{found['name']}`, which had no part in training: a linear probe over "
        f"its embeddings, fitted on {found['probe']['fitted']} real clips "
        f"({found['probe']['fit']}); shares of clips.\n\n"
    )
    return "\n" + about + "\n".join(lines) + "\n"


def _clean(rows: Mapping[str, Mapping[str, float | None]]) -> str:
    lines = [f"| | {' | '.join(CLEAN.values())} |", "| --- " * (len(CLEAN) + 1) + "|"]
    for row, found in rows.items():
        cells = ("–" if found[key] is None else f"{found[key]:.3g}" for key in CLEAN)
        lines.append(f"| {NAMES[row]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _class(
    entry: Mapping[str, Any],
    report: Mapping[str, Any],
    source: Path,
    folder: Path,
    front_end: MelFrontEnd,
) -> str:
    label = entry["label"]
    asked = [clip for clip in report["clips"] if clip["asked"] == label][:TAKES]
    waves = [source / "real" / f"{entry['example']}.wav"]
    waves += [source / "generated" / f"{clip['id']}.wav" for clip in asked]
    width, height = PANEL
    strip = Image.new("RGB", (len(waves) * (width + GAP) - GAP, height), "white")
    for place, path in enumerate(waves):
        wave = torch.from_numpy(read_audio(path, front_end.config.sample_rate))
        mel = front_end(wave[None])[0].numpy()
        strip.paste(spectrogram_image(mel, size=PANEL).convert("RGB"), (place * (width + GAP), 0))
    name = f"{slug(label)}.png"
    strip.quantize(COLOURS).save(folder / name, optimize=True)
    heard = ", ".join(f"{other} {count}" for other, count in entry["heard_as"].items())
    prompts = "; ".join(f"“{clip['prompt']}”, heard as {clip['heard']}" for clip in asked)
    return (
        f"\n**{label}**: {entry['generated']['top-1']:.0%} (real {entry['real']['top-1']:.0%}), "
        f"heard as {heard}\n\n![A real clip and three generated ones: {label}]({FOLDER}/{name})\n\n"
        f"{prompts}.\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("report", type=Path, help="folder of `diffsound evaluate recognise`")
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="folder for page and files")
    given = parser.parse_args(arguments)
    try:
        print(make_page(given.report, given.out))
    except DiffsoundError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
