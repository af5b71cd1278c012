"""A generated sound: the wave, what it was made from, and how to make it again."""

from __future__ import annotations

import base64
import html
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsound.names import layer_paths

if TYPE_CHECKING:
    from PIL.Image import Image

    from diffsound.layers import Layer


@dataclass(frozen=True)
class Sound:
    """One clip.

    wave: [samples] float32 mono, within [-1, 1]; mel: [n_mels, L]; tokens: [F', L'].
    settings: every argument that, with prompt and seed, makes this sound again.
    score: how well it fits the prompt, when candidates were ranked.
    coverage: what the model knows of such prompts, when the bundle can tell: coverage.py.
    layers: what a scene is mixed of; their waves add up to `wave`.
    gain: from what mel and tokens say to `wave`, which was brought to a level.
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
        self, path: str | Path, *, loudness: float | None = None, overwrite: bool = True
    ) -> Path:
        """Write WAV, FLAC, OGG or MP3 by the extension, with the metadata as the file's comment.

        loudness: target in LUFS; the result never clips, whatever is asked.
        """
        from diffsound.audio.io import write_audio

        path = Path(path)
        write_audio(
            path,
            self.wave,
            self.sample_rate,
            loudness=loudness,
            metadata={"diffsound": json.dumps(self.metadata, ensure_ascii=False)},
            overwrite=overwrite,
        )
        return path

    def save_layers(self, path: str | Path, *, overwrite: bool = True) -> list[Path]:
        """Write every layer of a scene: NAME-layer1.wav, …, which add up to the scene.

        All have the scene's length and level, for a mixing desk: none is normalised by itself.
        """
        from diffsound.audio.io import write_audio

        paths = layer_paths(Path(path), len(self.layers))
        for place, layer in zip(paths, self.layers, strict=True):
            note = {"diffsound": json.dumps(layer.metadata, ensure_ascii=False)}
            write_audio(place, layer.wave, self.sample_rate, metadata=note, overwrite=overwrite)
        return paths

    def spectrogram(self) -> Image:
        """The mel-spectrogram as a picture."""
        from diffsound.audio.spectrogram import spectrogram_image

        return spectrogram_image(self.mel)

    def save_spectrogram(self, path: str | Path) -> Path:
        """Write the mel-spectrogram as a PNG."""
        from diffsound.files import atomic_write

        path = Path(path)
        with atomic_write(path) as temporary:
            self.spectrogram().save(temporary, format="PNG")
        return path

    def _repr_html_(self) -> str:
        """A player and the spectrogram, for notebooks."""
        import soundfile

        audio, picture = io.BytesIO(), io.BytesIO()
        soundfile.write(audio, self.wave, self.sample_rate, format="WAV", subtype="PCM_16")
        self.spectrogram().save(picture, format="PNG")
        return (
            f"<figure><figcaption>{html.escape(self.prompt)} (seed {self.seed})</figcaption>"
            f'<img alt="spectrogram" src="data:image/png;base64,{_base64(picture)}"><br>'
            f'<audio controls src="data:audio/wav;base64,{_base64(audio)}"></audio></figure>'
        )


def _base64(stream: io.BytesIO) -> str:
    return base64.b64encode(stream.getvalue()).decode("ascii")
