"""Which of audio and JSON a caller wants, by the Accept header."""

from __future__ import annotations

from starlette.exceptions import HTTPException

from diffsound.serving.schemas import MEDIA_TYPES, AudioFormat, Delivery

_ALIASES = {"audio/x-wav": "wav", "audio/wave": "wav", "audio/vnd.wave": "wav", "audio/mp3": "mp3"}
_FORMATS: dict[str, str] = {media: name for name, media in MEDIA_TYPES.items()} | _ALIASES


def choose(accept: str | None, delivery: Delivery) -> AudioFormat | None:
    """The audio format to answer with, or None for JSON; 406 if neither is acceptable.

    An audio type in the header chooses the format unless the request names one itself.
    """
    chosen = "format" in delivery.model_fields_set
    for media in _by_preference(accept or "*/*"):
        if media in ("*/*", "audio/*"):
            return delivery.format
        if media in _FORMATS:
            return delivery.format if chosen else _FORMATS[media]  # type: ignore[return-value]
        if media in ("application/json", "application/*"):
            return None
    raise HTTPException(406, f"this gives {', '.join(MEDIA_TYPES.values())} or application/json")


def _by_preference(accept: str) -> list[str]:
    """The header's media ranges, best first; ones of weight 0 are left out."""
    weighted = []
    for part in accept.split(","):
        media, *parameters = (piece.strip().lower() for piece in part.split(";"))
        weight = 1.0
        for parameter in parameters:
            name, _, value = parameter.partition("=")
            if name == "q":
                try:
                    weight = float(value)
                except ValueError:
                    weight = 0.0
        if media and weight > 0:
            weighted.append((weight, media))
    return [media for _, media in sorted(weighted, key=lambda pair: -pair[0])]
