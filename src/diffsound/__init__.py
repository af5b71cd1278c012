"""Type a sentence, get the sound: discrete diffusion over the tokens of a VQ-VAE.

    import diffsound

    sound = diffsound.TextToSound.from_pretrained()("a dog barks", seed=7)[0]
    sound.save("dog.wav")

Importing this package is light; torch is loaded when a name is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Unpack

__version__ = "0.1.0"

_HOMES = {
    "TextToSound": "diffsound.generation.pipeline",
    "Sound": "diffsound.generation.sound",
    "Sounds": "diffsound.generation.sound",
    "Bundle": "diffsound.model.bundle",
    "BundleConfig": "diffsound.model.bundle",
    "GenerationSettings": "diffsound.generation.settings",
    "DiffsoundError": "diffsound.errors",
    "InputError": "diffsound.errors",
    "AudioError": "diffsound.errors",
    "BundleError": "diffsound.errors",
}

__all__ = [
    "AudioError",
    "Bundle",
    "BundleConfig",
    "BundleError",
    "DiffsoundError",
    "GenerationSettings",
    "InputError",
    "Sound",
    "Sounds",
    "TextToSound",
    "__version__",
    "load",
]

if TYPE_CHECKING:
    from diffsound.errors import AudioError, BundleError, DiffsoundError, InputError
    from diffsound.generation.jobs import LoadOptions
    from diffsound.generation.pipeline import TextToSound
    from diffsound.generation.settings import GenerationSettings
    from diffsound.generation.sound import Sound, Sounds
    from diffsound.model.bundle import Bundle, BundleConfig


def load(source: str | None = None, **options: Unpack[LoadOptions]) -> TextToSound:
    """The pipeline of a bundle: a folder, a hub id, or (None) the one in the package.

    options: `device`, `backend`, `max_batch_seconds`, `ranker`.
    """
    from diffsound.generation.pipeline import TextToSound

    return TextToSound.from_pretrained(source, **options)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'diffsound' has no attribute '{name}'")


def __dir__() -> list[str]:
    """Includes the names that are not loaded yet."""
    return sorted({*globals(), *__all__})
