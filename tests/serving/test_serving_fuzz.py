"""No input makes the server fail: the OpenAPI document fuzzed, and uploads of any bytes."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from diffsound.audio.io import encode_audio
from diffsound.serving.app import create_app

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
RELAXED = {
    "deadline": None,
    "derandomize": True,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}


SCHEMA = schemathesis.openapi.from_dict(create_app().openapi())
OPERATIONS = [result.ok() for result in SCHEMA.get_all_operations()]


# Only a body can be wrong in ways the document forbids: any text is a fine, if unknown, id.
CASES = [
    pytest.param(operation, mode, id=f"{operation.label} {mode.value}")
    for operation in OPERATIONS
    for mode in GenerationMode
    if mode is GenerationMode.POSITIVE or "requestBody" in operation.definition.raw
]


@pytest.mark.parametrize(("operation", "mode"), CASES)
@settings(max_examples=8, **RELAXED)
@given(data=st.data())
def test_answers_match_the_document_and_none_is_a_500(
    server: str, operation: Any, mode: GenerationMode, data: st.DataObject
) -> None:
    case = data.draw(operation.as_strategy(generation_mode=mode))
    case.call_and_validate(base_url=server, checks=CHECKS, timeout=60)


def clip(format: str) -> bytes:
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 22050)
    return encode_audio(noise, 22050, format)


CLIPS = {format: clip(format) for format in ("wav", "flac", "ogg", "mp3")}


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A real file with bytes overwritten, cut or repeated."""
    data = bytearray(CLIPS[draw(st.sampled_from(sorted(CLIPS)))])
    for _ in range(draw(st.integers(1, 8))):
        # Headers are at the front; that is where a few bytes do the most.
        place = draw(st.integers(0, 100) | st.integers(0, len(data) - 1))
        data[place] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.none() | st.integers(0, len(data)))])


@settings(max_examples=60, **RELAXED)
@given(data=st.binary(max_size=4000) | damaged(), name=st.text(max_size=20))
def test_an_upload_of_any_bytes_is_taken_or_refused(server: str, data: bytes, name: str) -> None:
    answer = httpx.post(f"{server}/v1/clips", files={"clip": (name, data)}, timeout=60)
    # A file name that cannot be sent makes the part a plain field.
    assert answer.status_code in (201, 400, 422), answer.text
    if answer.status_code != 201:
        assert "\n" not in answer.json()["detail"]
    else:
        assert np.isfinite(answer.json()["waveform"]).all()
