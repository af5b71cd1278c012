"""`/v1/sound-generation`, called by ElevenLabs' own client and by hand."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, get_args

import httpx
import numpy as np
import pytest
import soundfile
from elevenlabs.client import ElevenLabs
from elevenlabs.core.api_error import ApiError
from elevenlabs.errors import UnprocessableEntityError
from fastapi.testclient import TestClient

from diffsound.generation.pipeline import TextToSound
from diffsound.serving.sound_generation import OutputFormat, SoundGeneration, encode_as, translate
from serving_support import live_server, make_app

TEXT = "a dog barks"


@pytest.fixture(scope="module")
def keyed(pipeline: TextToSound) -> Iterator[str]:
    """A server on a real port that asks for a key."""
    with live_server(make_app(pipeline, api_keys=("secret",))) as url:
        yield url


@pytest.fixture(scope="module")
def elevenlabs(keyed: str) -> ElevenLabs:
    """The official client; only its base URL is ours."""
    return ElevenLabs(base_url=keyed, api_key="secret")


def convert(client: ElevenLabs, **fields: Any) -> bytes:
    return b"".join(client.text_to_sound_effects.convert(**fields))


def test_the_official_client_gets_a_sound(elevenlabs: ElevenLabs) -> None:
    audio = convert(elevenlabs, text=TEXT, duration_seconds=2.0, prompt_influence=0.3)
    wave, rate = soundfile.read(io.BytesIO(audio))
    assert soundfile.info(io.BytesIO(audio)).format == "MP3"
    assert rate == 44100
    assert 2.0 <= len(wave) / rate < 2.2  # MP3 pads both ends
    assert np.abs(wave).max() > 0


@pytest.mark.parametrize(
    ("output_format", "size"),
    [("pcm_44100", 88200), ("pcm_16000", 32000), ("ulaw_8000", 8000), ("alaw_8000", 8000)],
)
def test_formats_without_a_header(elevenlabs: ElevenLabs, output_format: Any, size: int) -> None:
    audio = convert(elevenlabs, text=TEXT, duration_seconds=1.0, output_format=output_format)
    assert len(audio) == pytest.approx(size, abs=4)


def test_the_client_is_told_what_was_wrong(elevenlabs: ElevenLabs, keyed: str) -> None:
    with pytest.raises(UnprocessableEntityError) as long:
        convert(elevenlabs, text=TEXT, duration_seconds=31)
    assert "duration_seconds" in str(long.value.body)
    with pytest.raises(UnprocessableEntityError):
        convert(elevenlabs, text="")
    with pytest.raises(ApiError) as stranger:
        convert(ElevenLabs(base_url=keyed, api_key="other"), text=TEXT)
    assert stranger.value.status_code == 401


def test_a_loop_is_made(elevenlabs: ElevenLabs, pipeline: TextToSound) -> None:
    assert convert(elevenlabs, text=TEXT, loop=True, duration_seconds=1.0)
    for loop in (True, False):
        body = SoundGeneration(text=TEXT, loop=loop)
        assert bool(translate(body, pipeline).loop) is loop


@pytest.mark.parametrize("output_format", get_args(OutputFormat))
def test_every_format_has_its_rate_length_and_bit_rate(
    pipeline: TextToSound, output_format: str
) -> None:
    (sound,) = pipeline(TEXT, duration=2.0, seed=1)
    codec, rate, *bit_rate = output_format.split("_")
    data = encode_as(sound, output_format)
    if codec in ("pcm", "ulaw", "alaw"):
        subtype = {"pcm": "PCM_16", "ulaw": "ULAW", "alaw": "ALAW"}[codec]
        wave, _ = soundfile.read(
            io.BytesIO(data), channels=1, samplerate=int(rate), format="RAW", subtype=subtype
        )
    else:
        wave, found = soundfile.read(io.BytesIO(data))
        assert found == int(rate)
    assert 2.0 <= len(wave) / int(rate) < 2.2
    assert np.abs(wave).max() <= 1
    if bit_rate:
        assert len(data) * 8 / 1000 / (len(wave) / int(rate)) == pytest.approx(
            float(bit_rate[0]), rel=0.25
        )


def test_prompt_influence_is_the_guidance_scale(pipeline: TextToSound) -> None:
    usual = pipeline.bundle.config.defaults.guidance_scale

    def scale(**fields: Any) -> float | None:
        return translate(SoundGeneration(text=TEXT, **fields), pipeline).guidance_scale

    assert scale() is None
    assert scale(prompt_influence=0.0) == 1
    assert scale(prompt_influence=0.3) == usual
    assert scale(prompt_influence=1.0) == 2 * usual


def test_fields_we_do_not_know_are_ignored(client: TestClient) -> None:
    body = {"text": TEXT, "duration_seconds": 0.5, "model_id": "eleven_text_to_sound_v2", "new": 1}
    answer = client.post("/v1/sound-generation?output_format=wav_22050", json=body)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "audio/wav"
    wrong = client.post("/v1/sound-generation?output_format=wma_1", json=body)
    assert wrong.status_code == 422
    assert "output_format" in wrong.json()["detail"]


def test_the_key_may_come_in_the_clients_own_header(keyed: str) -> None:
    body = {"text": TEXT, "duration_seconds": 0.5}
    for headers, status in (({"xi-api-key": "secret"}, 200), ({"xi-api-key": "no"}, 401)):
        answer = httpx.post(f"{keyed}/v1/sound-generation", json=body, headers=headers, timeout=60)
        assert answer.status_code == status
