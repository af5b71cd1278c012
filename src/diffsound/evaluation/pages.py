"""The HTML reports of evaluations: each one file with its sounds and pictures, easy to send.

The templates are `templates/evaluation.html`, `recognise.html` and `follow.html`; here are the
values they show.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsound.audio.io import encode_audio, read_audio
from diffsound.audio.mel import MelConfig
from diffsound.audio.spectrogram import spectrogram_image
from diffsound.evaluation.figures import mel_of
from diffsound.evaluation.sets import Example, read_examples
from diffsound.html import data_url, render, write_page

if TYPE_CHECKING:
    from PIL.Image import Image

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


def picture_url(picture: Image) -> str:
    """A picture as a data URL."""
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return data_url(buffer.getvalue(), "image/png")


def write_evaluation(out: Path, report: Mapping[str, Any], *, shown: int = SHOWN) -> Path:
    """Write OUT/report.html from the report of `evaluate run` and the sets beside it."""
    examples = read_examples(out)
    captions = {example.id: example.caption for example in examples}
    rows = {row: report["rows"][row]["scores"] for row in ROWS if row in report["rows"]}
    metrics = dict.fromkeys(name for scores in rows.values() for name in scores)
    text = render(
        "evaluation.html",
        styles=_STYLES,
        title=f"Evaluation of {report['title']}",
        report=report,
        names=ROWS,
        notes=_notes(report["rows"]),
        charts={
            name: {row: scores[name] for row, scores in rows.items() if name in scores}
            for name in metrics
        },
        examples=_examples(out, report, examples[:shown]),
        nearest=_nearest(out, report, captions),
        extremes=_extremes(report["clips"]),
        protocol=_protocol(report),
    )
    return write_page(out / PAGE, text)


def write_recognition(out: Path, report: Mapping[str, Any], pictures: Mapping[str, Path]) -> Path:
    """Write OUT/report.html from the report of `evaluate recognise` and the sounds beside it.

    pictures: confusion matrices of the classifier ("own") and of an outside ear ("ear"), if any.
    """
    clean = [
        [ROWS[row], *(_number(found[key]) for key in CLEANLINESS)]
        for row, found in report["cleanliness"].items()
    ]
    text = render(
        "recognise.html",
        styles=_STYLES,
        title=f"Recognition of {report['title']}",
        report=report,
        names=ROWS,
        confusion=_picture_file(pictures["own"]),
        ear_confusion=_picture_file(pictures["ear"]) if "ear" in pictures else "",
        clean_head=["", *CLEANLINESS.values()],
        clean=clean,
        worst=[_worst_class(out, report, entry) for entry in report["classes"][:WORST]],
        protocol=_protocol(report),
    )
    return write_page(out / PAGE, text)


def write_follow(out: Path, report: Mapping[str, Any], *, shown: int = SHOWN) -> Path:
    """Write OUT/report.html from the report of `evaluate follow` and the sounds beside it."""
    config = MelConfig.model_validate(report["protocol"]["mel"])
    examples = []
    for task in report["tasks"][:shown]:
        heard = ", ".join(task["heard"][:6])
        states = (
            f"{task[of]} {'present' if task[f'{of}_present'] else 'missing'}"
            for of in ("first", "second")
        )
        takes = [
            _take(out / "generated" / f"{task['id']}.0.wav", config, f"generated · heard: {heard}"),
            _take(out / "scenes" / f"{task['id']}.wav", config, "a true scene of the two"),
        ]
        examples.append({"title": f"“{task['text']}”", "small": ", ".join(states), "takes": takes})
    text = render(
        "follow.html",
        styles=_STYLES,
        title=f"How {report['title']} follows texts of two events",
        report=report,
        names=FOLLOW_ROWS,
        examples=examples,
        protocol=_protocol(report),
    )
    return write_page(out / PAGE, text)


def _take(path: Path, config: MelConfig, caption: str) -> dict[str, str]:
    """A sound in a file as spectrogram, player and caption."""
    wave = read_audio(path, config.sample_rate)
    picture = spectrogram_image(mel_of(wave, config), size=_PICTURE)
    return {
        "picture": picture_url(picture),
        "sound": audio_url(wave, config.sample_rate),
        "caption": caption,
    }


def _examples(
    out: Path, report: Mapping[str, Any], examples: Sequence[Example]
) -> list[dict[str, Any]]:
    """Each example's real, vocoder, codec and generated sound."""
    config = MelConfig.model_validate(report["protocol"]["mel"])
    guesses = {clip["id"]: clip["label"] for clip in report["clips"]}
    shown = []
    for example in examples:
        takes = []
        for row in ROWS:
            name = f"{example.id}.0" if row == "generated" else example.id
            told = f"{row} · heard as {guesses[name]}" if name in guesses else row
            path = out / row / f"{name}.wav"
            if path.exists():
                takes.append(_take(path, config, told))
        shown.append({"title": f"“{example.caption}”", "small": example.id, "takes": takes})
    return shown


def _nearest(
    out: Path, report: Mapping[str, Any], captions: Mapping[str, str]
) -> list[dict[str, Any]]:
    """The generated sounds closest to training clips, each beside its clip: copies appear here."""
    config = MelConfig.model_validate(report["protocol"]["mel"])
    of = {clip["id"]: clip["of"] for clip in report["clips"]}
    shown = []
    for one in report["checks"].get("nearest", ()):
        verdict = "the same recording" if one["same_recording"] else "another recording"
        takes = [
            _take(out / folder / f"{name}.wav", config, f"{folder}: {name}")
            for folder, name in (("generated", one["id"]), ("training", one["nearest"]))
        ]
        small = f"distance {one['distance']:.3g}, {verdict}"
        shown.append({"title": f"“{captions[of[one['id']]]}”", "small": small, "takes": takes})
    return shown


def _worst_class(out: Path, report: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    config = MelConfig.model_validate(report["protocol"]["mel"])
    mine = [clip for clip in report["clips"] if clip["asked"] == entry["label"]][:WORST_TAKES]
    takes = [_take(out / "real" / f"{entry['example']}.wav", config, "real")]
    for clip in mine:
        told = f"“{clip['prompt']}” · heard as {clip['heard']} ({clip['probability']:.0%})"
        takes.append(_take(out / "generated" / f"{clip['id']}.wav", config, told))
    heard = ", ".join(f"{name} {count}" for name, count in entry["heard_as"].items())
    shares = f"top-1 {entry['generated']['top-1']:.0%} (real {entry['real']['top-1']:.0%})"
    return {"title": entry["label"], "small": f"{shares}; heard as {heard}", "takes": takes}


def _notes(rows: Mapping[str, Any]) -> list[str]:
    """Every distinct note once: protocols, and why a metric is missing."""
    return list(
        dict.fromkeys(
            f"{name}: {score['note']}"
            for row in rows.values()
            for name, score in row["scores"].items()
            if score["note"]
        )
    )


def _extremes(clips: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The generated clips farthest from and closest to their real ones, by KL."""
    ranked = sorted(clips, key=lambda clip: -clip["kl"])
    chosen = ranked[:_EXTREMES] + ranked[_EXTREMES:][-_EXTREMES:]
    return [
        [
            clip["id"],
            _number(clip["kl"]),
            _number(clip["realism"]),
            f"{clip['label']} ({clip['probability']:.0%})",
        ]
        for clip in chosen
    ]


def _protocol(report: Mapping[str, Any]) -> str:
    return json.dumps(report["protocol"], indent=2, ensure_ascii=False)


def _picture_file(path: Path) -> str:
    return data_url(path.read_bytes(), "image/png")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
