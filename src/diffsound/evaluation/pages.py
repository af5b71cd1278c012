"""What evaluations show: spectrograms side by side (figure 6), a sound as it forms, confusion
matrices, and the HTML reports, each one file with its sounds and pictures.

The templates are `templates/evaluation.html`, `recognise.html` and `follow.html`.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from diffsound.audio.io import encode_audio, read_audio
from diffsound.audio.mel import MelConfig, MelFrontEnd
from diffsound.audio.spectrogram import spectrogram_image
from diffsound.errors import InputError, MissingExtraError
from diffsound.evaluation.sets import common_texts, read_examples
from diffsound.files import atomic_write
from diffsound.generation.jobs import unfinished_mel
from diffsound.generation.pipeline import TextToSound
from diffsound.html import data_url, render, write_page

if TYPE_CHECKING:
    from PIL.Image import Image

CELL = (300, 120)
_LINE, _GAP = 18, 10
_LAST_FRAME_MS = 1500


def mel_of(wave: np.ndarray, config: MelConfig) -> np.ndarray:
    """A wave [samples] at the mel's rate to its mel [n_mels, L]."""
    with torch.inference_mode():
        return np.asarray(MelFrontEnd(config)(torch.from_numpy(wave)[None])[0].numpy())


def side_by_side(path: str | Path, rows: Sequence[tuple[str, Mapping[str, np.ndarray]]]) -> Path:
    """Figure 6 as a PNG: a row per prompt, with a mel [n_mels, L] under each column's name."""
    from PIL import Image, ImageDraw

    columns = list(dict.fromkeys(name for _, mels in rows for name in mels))
    if not columns:
        raise InputError("there are no mels to draw")
    width, height = CELL
    row = _LINE + height + _GAP
    size = (_GAP + len(columns) * (width + _GAP), 2 * _GAP + _LINE + len(rows) * row)
    sheet = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(sheet)
    for at, name in enumerate(columns):
        draw.text((_GAP + at * (width + _GAP), _GAP), _latin(name), fill="black")
    for line, (prompt, mels) in enumerate(rows):
        top = _GAP + _LINE + line * row
        draw.text((_GAP, top), _latin(prompt)[: size[0] // 7], fill="#555555")
        for at, name in enumerate(columns):
            if name in mels:
                picture = spectrogram_image(mels[name], size=CELL)
                sheet.paste(picture, (_GAP + at * (width + _GAP), top + _LINE))
    return _save(sheet, Path(path))


def figure_of_runs(
    path: str | Path, runs: Mapping[str, str | Path], *, texts: int = 4, seed: int = 0
) -> Path:
    """Figure 6 from evaluations' folders: real clips and each system's first sound."""
    if not runs or texts < 1:
        raise InputError("a figure needs at least one evaluation and one text")
    mel = MelConfig.full_band()
    common = list(common_texts(runs).items())
    drawn = np.random.default_rng(seed).permutation(len(common))[:texts]
    rows = []
    for clip_id, caption in (common[i] for i in drawn):
        files = {"real": Path(next(iter(runs.values()))) / "real" / f"{clip_id}.wav"}
        files |= {
            name: Path(folder) / "generated" / f"{clip_id}.0.wav" for name, folder in runs.items()
        }
        waves = {name: read_audio(file, mel.sample_rate) for name, file in files.items()}
        rows.append((caption, {name: mel_of(wave, mel) for name, wave in waves.items()}))
    return side_by_side(path, rows)


def denoising(
    path: str | Path,
    pipeline: TextToSound,
    prompt: str,
    *,
    frames: int = 8,
    seed: int = 0,
    duration: float | None = None,
    **sampling: Any,
) -> Path:
    """A sound as it forms: a GIF that plays the steps, or a PNG with them side by side.

    frames: number of steps shown, the last one included.
    """
    path = Path(path)
    if path.suffix.lower() not in (".gif", ".png") or frames < 1:
        raise InputError(f"the steps are drawn as a .gif or .png file, not {path.name}")
    steps: list[Tensor] = []
    (sound,) = pipeline(
        prompt,
        duration=duration,
        seed=seed,
        callback=lambda _, tokens: steps.append(tokens[0].cpu().clone()),
        **sampling,
    )
    chosen = np.unique(np.linspace(0, len(steps) - 1, min(frames, len(steps))).round().astype(int))
    names = [f"step {at + 1} of {len(steps)}" for at in chosen]
    mels = [unfinished_mel(pipeline, steps[at]) for at in chosen[:-1]] + [sound.mel]
    if path.suffix.lower() == ".png":
        return side_by_side(path, [(prompt, dict(zip(names, mels, strict=True)))])
    pictures = [spectrogram_image(mel, size=CELL) for mel in mels]
    times = [max(80, math.ceil(2000 / len(pictures)))] * (len(pictures) - 1) + [_LAST_FRAME_MS]
    return _save(
        pictures[0], path, save_all=True, append_images=pictures[1:], duration=times, loop=0
    )


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure of this size in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "eval") from error
    return Figure(figsize=(width, height), layout="constrained")


def confusion_figure(
    path: Path, asked: Sequence[str], labels: Sequence[str], counts: Mapping[str, np.ndarray]
) -> Path:
    """Which class is heard as which, a panel for each title in `counts`, int [asked, labels]."""
    side = 1.5 + 0.16 * len(labels)
    figure = new_figure(side * len(counts), 1.5 + 0.16 * len(asked))
    panels = figure.subplots(1, len(counts), squeeze=False)[0]
    for panel, (title, table) in zip(panels, counts.items(), strict=True):
        shares = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
        panel.imshow(shares, cmap="magma", vmin=0, vmax=1, aspect="auto")
        # Otherwise matplotlib reads $…$ as mathematics, whatever a class is called.
        plain: dict[str, Any] = {"fontsize": 6, "parse_math": False}
        panel.set_xticks(range(len(labels)), labels, rotation=90, **plain)
        panel.set_yticks(range(len(asked)), asked, **plain)
        panel.set_title(f"{title}: class down, heard as across", fontsize=9, parse_math=False)
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=110)
    return path


def _save(picture: Image, path: Path, **options: Any) -> Path:
    try:
        with atomic_write(path) as temporary:
            picture.save(temporary, **options)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def _latin(text: str) -> str:
    """PIL's built-in font knows Latin-1 only."""
    return text.encode("latin-1", "replace").decode("latin-1")


PAGE = "report.html"
ROWS = {
    "real": "real clips",
    "vocoder": "vocoder alone (real mel → wave)",
    "codec": "codec + vocoder (real mel → tokens → wave)",
    "generated": "generated from text",
}
FOLLOW_ROWS = {
    "scenes": "true scenes (what the measure can find)",
    "generated": "generated from text",
    "chance": "generated, by another text's events (chance)",
}
CLEANLINESS = {
    "clipped_share": "clipped clips",
    "offset_db": "offset, dBFS",
    "silence_share": "silent frames",
    "silent_clips": "silent clips",
    "cut_share": "cut off",
    "seam_ratio": "steps at columns",
    "spectrum_distance_db": "spectrum to real, dB",
    "loudness_lufs": "loudness, LUFS",
    "loudness_spread_lu": "its spread, LU",
}
SHOWN = 12  # examples: a page with every clip would not open
WORST, WORST_TAKES = 10, 3  # classes that recognition shows, and generated sounds of each
_EXTREMES = 8
_PICTURE = (260, 90)
_STYLES = ("page.css", "evaluation.css")


def audio_url(wave: np.ndarray, sample_rate: int, *, loudness: float | None = None) -> str:
    """A wave [samples] as a data URL; MP3, which every browser plays."""
    return data_url(encode_audio(wave, sample_rate, "mp3", loudness=loudness), "audio/mpeg")


def write_evaluation(out: Path, report: Mapping[str, Any]) -> Path:
    """Write OUT/report.html from the report of `evaluate run` and the sets beside it."""
    examples = read_examples(out)
    texts = {example.id: example.caption for example in examples}
    rows = {row: report["rows"][row]["scores"] for row in ROWS if row in report["rows"]}
    metrics = dict.fromkeys(name for scores in rows.values() for name in scores)
    charts = {
        name: {row: scores[name] for row, scores in rows.items() if name in scores}
        for name in metrics
    }
    return _write_report(
        out,
        report,
        "evaluation.html",
        f"Evaluation of {report['title']}",
        names=ROWS,
        charts=charts,
        examples=examples[:SHOWN],
        extremes=_EXTREMES,
        captions={clip["id"]: texts[clip["of"]] for clip in report["clips"]},
        guesses={clip["id"]: clip["label"] for clip in report["clips"]},
    )


def write_recognition(out: Path, report: Mapping[str, Any], pictures: Mapping[str, Path]) -> Path:
    """Write OUT/report.html from the report of `evaluate recognise` and the sounds beside it.

    pictures: confusion matrices of the classifier ("own") and of an outside ear ("ear"), if any.
    """
    confusion = {name: data_url(path.read_bytes(), "image/png") for name, path in pictures.items()}
    return _write_report(
        out,
        report,
        "recognise.html",
        f"Recognition of {report['title']}",
        names=ROWS,
        confusion=confusion,
        cleanliness=CLEANLINESS,
        worst=WORST,
        takes=WORST_TAKES,
    )


def write_follow(out: Path, report: Mapping[str, Any]) -> Path:
    """Write OUT/report.html from the report of `evaluate follow` and the sounds beside it."""
    title = f"How {report['title']} follows texts of two events"
    return _write_report(out, report, "follow.html", title, names=FOLLOW_ROWS, shown=SHOWN)


def _write_report(
    out: Path, report: Mapping[str, Any], template: str, title: str, **values: Any
) -> Path:
    config = MelConfig.model_validate(report["protocol"]["mel"])

    def take(name: str, caption: str) -> dict[str, str]:
        """The sound OUT/NAME.wav as spectrogram, player and caption; nothing if there is none."""
        path = out / f"{name}.wav"
        if not path.exists():
            return {}
        wave, buffer = read_audio(path, config.sample_rate), io.BytesIO()
        picture = spectrogram_image(mel_of(wave, config), size=_PICTURE)
        picture.save(buffer, format="PNG", optimize=True)
        image, sound = data_url(buffer.getvalue(), "image/png"), audio_url(wave, config.sample_rate)
        return {"picture": image, "sound": sound, "caption": caption}

    protocol = json.dumps(report["protocol"], indent=2, ensure_ascii=False)
    values |= {"title": title, "report": report, "take": take, "protocol": protocol}
    return write_page(out / PAGE, render(template, styles=_STYLES, **values))
