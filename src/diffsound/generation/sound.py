"""A generated sound: the wave, what it was made from, and how to make it again."""

from __future__ import annotations

import base64
import html
import io
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Unpack

import numpy as np

from diffsound.audio.mixing import (
    PEAK,
    SILENCE_DB,
    decibels,
    gain_to,
    level_db,
    trim_silence,
    widen,
)
from diffsound.errors import InputError
from diffsound.files import parse_json
from diffsound.generation.settings import (
    SETTINGS,
    GenerationSettings,
    GivenOutput,
    OutputSettings,
    check,
    complete,
    layer_paths,
)

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    from diffsound.generation.edits import Edit


@dataclass(frozen=True)
class Layer:
    """One sound of a scene. wave: [samples of the scene]; the layers add up to the scene.

    start, end: seconds. gain_db: from the sound as it was made to the sound in the scene.
    """

    text: str
    seed: int
    start: float
    end: float
    distant: bool
    background: bool
    gain_db: float
    wave: np.ndarray

    def __repr__(self) -> str:
        return f"Layer({str(self)!r})"

    def __str__(self) -> str:
        """ "4.0 to 8.0 s: a dog barks, far away"."""
        place = ", far away" if self.distant else ", behind" if self.background else ""
        return f"{self.start:.1f} to {self.end:.1f} s: {self.text}{place}"

    @property
    def metadata(self) -> dict[str, Any]:
        """Everything but the wave."""
        marks = {name: True for name in ("distant", "background") if getattr(self, name)}
        return {
            "text": self.text,
            "seed": self.seed,
            "start": round(self.start, 3),
            "end": round(self.end, 3),
            "gain_db": round(self.gain_db, 1),
        } | marks


@dataclass(frozen=True)
class Sound:
    """One clip.

    wave: [samples] float32 mono, within [-1, 1]; mel: [n_mels, L]; tokens: [F', L'].
    settings: every argument that, with prompt and seed, makes this sound again.
    score: how well it fits the prompt, when candidates were ranked.
    coverage: how well the model knows such prompts, when the bundle can tell: model/coverage.py.
    layers: the sounds that make up a scene; their waves add up to `wave`.
    gain: the factor that brought the vocoder's wave to the level of `wave`.
    """

    wave: np.ndarray
    sample_rate: int
    mel: np.ndarray
    tokens: np.ndarray
    prompt: str
    seed: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    score: float | None = None
    coverage: Mapping[str, Any] | None = None
    layers: tuple[Layer, ...] = ()
    gain: float = 1.0

    def __repr__(self) -> str:
        score = "" if self.score is None else f", score {self.score:.2f}"
        return f"Sound({self.prompt!r}, {self.duration:g} s, seed {self.seed}{score})"

    @property
    def duration(self) -> float:
        """Seconds."""
        return len(self.wave) / self.sample_rate

    @property
    def metadata(self) -> dict[str, Any]:
        """Prompt, seed and settings, and the coverage if known: what `save` puts into the file."""
        known: dict[str, Any] = {}
        if self.coverage is not None:
            known["coverage"] = dict(self.coverage)
        if self.layers:
            known["layers"] = [layer.metadata for layer in self.layers]
        return {"prompt": self.prompt, "seed": self.seed, **self.settings, **known}

    def save(
        self, path: str | Path, *, overwrite: bool = True, **output: Unpack[GivenOutput]
    ) -> Path:
        """Write WAV, FLAC, OGG or MP3 by the extension.

        Players show the prompt as title; the comment holds the metadata as JSON.
        output: any of `OutputSettings`: `loudness` in LUFS, `rate`, `channels`, `bit_depth`,
        `trim`. The result never clips, whatever the target.
        """
        from diffsound.audio.io import check_target, write_bytes

        path = check_target(path, overwrite=overwrite)
        write_bytes(path, self.encode(path.suffix.lower()[1:], **output))
        return path

    def encode(self, format: str = "wav", **output: Unpack[GivenOutput]) -> bytes:
        """The file that `save` writes, as bytes: "wav", "flac", "ogg" or "mp3"."""
        return self._encode(self.wave, format, self.prompt, self.metadata, output)

    def encode_layer(
        self, layer: Layer, format: str = "wav", **output: Unpack[GivenOutput]
    ) -> bytes:
        """A layer of this scene as a file's bytes; `loudness` and `trim` do not apply to it."""
        kept = output | {"loudness": None, "trim": False}
        return self._encode(layer.wave, format, layer.text, layer.metadata, kept)

    def save_layers(
        self, path: str | Path, *, overwrite: bool = True, **output: Unpack[GivenOutput]
    ) -> list[Path]:
        """Write every layer of a scene: NAME-layer1.wav, …, which add up to the scene.

        Each has the scene's length and its level in the scene; none is normalised by itself.
        """
        from diffsound.audio.io import check_target, write_bytes

        paths = layer_paths(Path(path), len(self.layers))
        for place, layer in zip(paths, self.layers, strict=True):
            check_target(place, overwrite=overwrite)
            write_bytes(place, self.encode_layer(layer, place.suffix.lower()[1:], **output))
        return paths

    def _encode(
        self,
        wave: np.ndarray,
        format: str,
        title: str,
        recipe: Mapping[str, Any],
        given: Mapping[str, Any],
    ) -> bytes:
        from diffsound.audio.io import encode_audio

        output: OutputSettings = check(OutputSettings, dict(given))
        loop = bool(self.settings.get("loop"))
        if loop and output.trim:
            raise InputError("trim would open the loop; leave it out")
        wave, rate = delivered(wave, self.sample_rate, output, loop)
        # NUL ends a tag in every format, and a title is one line.
        tags = {"title": " ".join(title.replace("\0", " ").split()), "artist": "diffsound"}
        return encode_audio(
            wave,
            rate,
            format,
            bits=output.bits,
            loudness=output.loudness,
            metadata={"diffsound": dict(recipe)},
            tags=tags | {"date": _today()},
        )

    def spectrogram(self) -> Image:
        """The mel-spectrogram of the wave as a figure: axes, title and colour scale."""
        from diffsound.audio.spectrogram import spectrogram_figure

        return spectrogram_figure(self.wave, self.sample_rate, self.prompt)

    def save_spectrogram(self, path: str | Path) -> Path:
        """Write the mel-spectrogram as a PNG."""
        from diffsound.files import atomic_write

        path = Path(path)
        with atomic_write(path) as temporary:
            figure = self.spectrogram()
            figure.save(temporary, format="PNG", dpi=figure.info["dpi"])
        return path

    def play(self) -> None:
        """Play it to its end with a program of this system, such as `paplay` or `ffplay`."""
        from diffsound.audio.player import find_player, play

        player = find_player("wav")
        with tempfile.TemporaryDirectory() as folder:
            play(player, self.save(Path(folder) / "sound.wav"))

    def _repr_html_(self) -> str:
        """A player and the spectrogram, for notebooks."""
        import soundfile

        audio, picture = io.BytesIO(), io.BytesIO()
        soundfile.write(audio, self.wave, self.sample_rate, format="WAV", subtype="PCM_16")
        self.spectrogram().save(picture, format="PNG")
        return (
            f"<figure><figcaption>{html.escape(self.prompt)} (seed {self.seed})</figcaption>"
            f'<img alt="spectrogram" width="860" '
            f'src="data:image/png;base64,{_base64(picture)}"><br>'
            f'<audio controls src="data:audio/wav;base64,{_base64(audio)}"></audio></figure>'
        )


class Sounds(list[Sound]):
    """The sounds of a call: a list, which a notebook shows as players and spectrograms."""

    def _repr_html_(self) -> str:
        return "".join(sound._repr_html_() for sound in self)


def fade_edges(wave: Tensor, sample_rate: int, seconds: float = 0.004) -> Tensor:
    """Fade both ends over a few milliseconds, so that a cut never clicks."""
    import torch

    length = min(round(seconds * sample_rate), len(wave) // 2)
    if length == 0:
        return wave
    ramp = torch.linspace(0.0, 1.0, length, device=wave.device)
    faded = wave.clone()
    faded[:length] *= ramp
    faded[-length:] *= ramp.flip(0)
    return faded


def at_level(
    wave: Tensor, sample_rate: int, settings: GenerationSettings, edit: Edit | None
) -> tuple[np.ndarray, float]:
    """A drawn wave [samples] at its level, and the gain that brought it there.

    An edit has its clip's level, another sound the one asked for, and full scale at most, which a
    vocoder may exceed.
    """
    faded = wave if settings.loop else fade_edges(wave, sample_rate)
    if edit is not None:
        return edit.join(edit.gain * faded).cpu().numpy(), edit.gain
    drawn = faded.cpu().numpy()
    gain = 1.0 if settings.level is None else gain_to(settings.level, drawn, sample_rate)
    gain = min(gain, PEAK / max(float(np.abs(drawn).max()), 1e-9))
    return drawn * np.float32(gain), gain


def at_one_level(sounds: Sequence[Sound]) -> Sounds:
    """Sounds at the level of the first one, or all of them quieter if a peak asks for it."""
    levels = [level_db(sound.wave, sound.sample_rate) for sound in sounds]
    gains = [
        1.0 if levels[0] is None or level is None else decibels(levels[0] - level)
        for level in levels
    ]
    peaks = [
        gain * float(np.abs(sound.wave).max()) for gain, sound in zip(gains, sounds, strict=True)
    ]
    down = min(1.0, PEAK / max(*peaks, 1e-9))
    return Sounds(
        replace(sound, wave=sound.wave * np.float32(gain * down), gain=sound.gain * gain * down)
        for gain, sound in zip(gains, sounds, strict=True)
    )


def delivered(
    wave: np.ndarray, rate: int, output: OutputSettings, loop: bool = False
) -> tuple[np.ndarray, int]:
    """A wave [samples] as it is asked for, [samples] or [samples, 2], and its sample rate."""
    from diffsound.audio.io import resample

    if output.trim:
        wave, _ = trim_silence(wave, rate, SILENCE_DB)
    if output.rate not in (None, rate):
        if loop:  # of three repetitions the second has its neighbours around it
            length = round(len(wave) * output.rate / rate)
            wave = resample(np.tile(wave, 3), rate, output.rate)[length : 2 * length]
        else:
            wave = resample(wave, rate, output.rate)
        rate = output.rate
    return (widen(wave, rate, loop) if output.channels == 2 else wave), rate


def _today() -> str:
    """SOURCE_DATE_EPOCH, if set, gives the same file on any day (reproducible-builds.org)."""
    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = datetime.fromtimestamp(int(given), UTC) if given.isdecimal() else datetime.now(UTC)
    return now.date().isoformat()


def _base64(stream: io.BytesIO) -> str:
    return base64.b64encode(stream.getvalue()).decode("ascii")


def read_recipe(source: str | Path | BinaryIO) -> dict[str, Any] | None:
    """The `Sound.metadata` that `Sound.save` put into a file; None when there is none."""
    from diffsound.audio.io import read_metadata

    recipe = read_metadata(source).get("diffsound")
    if isinstance(recipe, str):  # older files have JSON inside JSON
        try:
            recipe = parse_json(recipe)
        except ValueError:
            return None
    return recipe if isinstance(recipe, dict) else None


def read_prompt(path: Path) -> str:
    """The prompt that a file was made from."""
    recipe = read_recipe(path)
    if recipe is None or "prompt" not in recipe:
        raise InputError(f"{path} does not say what it was made from; give a prompt")
    return str(recipe["prompt"])


def check_complete(path: Path, recipe: dict[str, Any] | None) -> dict[str, Any]:
    """The recipe, if it is enough to make the sound again."""
    if recipe is None:
        raise InputError(f"{path} has no recipe: it was not made by diffsound")
    if "edit" in recipe:
        raise InputError(f"{path} is an edit and cannot be remade without the clip it changed")
    if "text" in recipe:
        raise InputError(f"{path} is one layer of a scene; remake the scene with --stems")
    if not isinstance(recipe.get("prompt"), str) or not isinstance(recipe.get("seed"), int):
        raise InputError(f"{path} has a recipe that lacks a prompt or a seed")
    return recipe


def recipe_settings(recipe: dict[str, Any]) -> GenerationSettings:
    """The settings of a recipe, checked; those it does not name are None."""
    given: Any = {name: value for name, value in recipe.items() if name in SETTINGS}
    return complete(GenerationSettings(), given)
