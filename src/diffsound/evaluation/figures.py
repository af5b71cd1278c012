"""Pictures: systems side by side (figure 6), a sound as it forms, which class is heard as which."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from diffsound.audio.io import read_audio
from diffsound.audio.mel import MelConfig, MelFrontEnd
from diffsound.audio.spectrogram import spectrogram_image
from diffsound.errors import InputError, MissingExtraError
from diffsound.evaluation.sets import common_texts
from diffsound.files import atomic_write
from diffsound.generation.pipeline import TextToSound
from diffsound.generation.unfinished import unfinished_mel

if TYPE_CHECKING:
    from PIL.Image import Image

CELL = (300, 120)
_LINE, _GAP = 18, 10
_LAST_FRAME_MS = 1500


def mel_of(wave: np.ndarray, config: MelConfig) -> np.ndarray:
    """A wave [samples] at the mel's rate to its mel [n_mels, L]."""
    with torch.inference_mode():
        return np.asarray(MelFrontEnd(config)(torch.from_numpy(wave)[None])[0].numpy())


def side_by_side(
    path: str | Path,
    rows: Sequence[tuple[str, Mapping[str, np.ndarray]]],
    *,
    cell: tuple[int, int] = CELL,
) -> Path:
    """Figure 6 as a PNG: a row per prompt, with a mel [n_mels, L] under each column's name."""
    from PIL import Image, ImageDraw

    columns = list(dict.fromkeys(name for _, mels in rows for name in mels))
    if not columns:
        raise InputError("there are no mels to draw")
    width, height = cell
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
                picture = spectrogram_image(mels[name], size=cell)
                sheet.paste(picture, (_GAP + at * (width + _GAP), top + _LINE))
    return _save(sheet, Path(path))


def figure_of_runs(
    path: str | Path,
    runs: Mapping[str, str | Path],
    *,
    texts: int = 4,
    seed: int = 0,
    mel: MelConfig | None = None,
) -> Path:
    """Figure 6 from evaluations' folders: real clips and each system's first sound."""
    if not runs or texts < 1:
        raise InputError("a figure needs at least one evaluation and one text")
    mel = mel or MelConfig.full_band()
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


def confusion_figure(
    path: Path, asked: Sequence[str], labels: Sequence[str], counts: Mapping[str, np.ndarray]
) -> Path:
    """Which class is heard as which, a panel for each title in `counts`, int [asked, labels]."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "eval") from error
    side = 1.5 + 0.16 * len(labels)
    figure = Figure(figsize=(side * len(counts), 1.5 + 0.16 * len(asked)), layout="constrained")
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
