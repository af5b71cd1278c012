"""What one request may ask of this server; more is refused in one line."""

from __future__ import annotations

from diffsound.errors import InputError
from diffsound.serving.schemas import Drawing
from diffsound.serving.settings import Limits


def check_limits(limits: Limits, request: Drawing, seconds: float) -> None:
    """Refuse a request for sounds of `seconds` that is more than this server gives."""
    for name, text in (("prompt", request.prompt), ("negative_prompt", request.negative_prompt)):
        if text is not None and len(text) > limits.prompt_chars:
            raise InputError(
                f"the {name} has {len(text)} characters; this server takes {limits.prompt_chars}"
            )
    if seconds > limits.duration + 1e-6:
        raise InputError(
            f"{seconds:g} s of sound were asked for; this server makes up to {limits.duration:g} s"
        )
    if request.num_candidates > limits.candidates:
        raise InputError(
            f"num_candidates is {request.num_candidates}; this server makes up to "
            f"{limits.candidates} at once"
        )
    if request.num_inference_steps is not None and request.num_inference_steps > limits.steps:
        raise InputError(
            f"num_inference_steps is {request.num_inference_steps}; this server takes up to "
            f"{limits.steps}"
        )
    drawn = request.num_candidates * (request.best_of or 1)
    work = seconds * drawn
    if work > limits.work + 1e-6:
        raise InputError(
            f"{drawn} candidates of {seconds:g} s are {work:g} s of sound; this "
            f"server makes up to {limits.work:g} s in one request"
        )
