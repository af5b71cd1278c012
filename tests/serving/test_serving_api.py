"""The HTTP API, endpoint by endpoint."""

from __future__ import annotations

import base64
import io
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from fastapi.testclient import TestClient
from PIL import Image

from diffsound.audio.io import encode_audio, read_audio
from diffsound.generation.pipeline import TextToSound
from diffsound.generation.sound import read_recipe
from diffsound.model.checks import copy_bundle
from diffsound.serving.settings import Limits
from serving_support import HOST, make_app, wait_ready

JSON = {"Accept": "application/json"}


def wave_file(seconds: float = 1.0, format: str = "wav", rate: int = 22050) -> bytes:
    times = np.arange(round(seconds * rate)) / rate
    return encode_audio(0.5 * np.sin(2 * np.pi * 440 * times), rate, format)


def read(data: bytes) -> np.ndarray:
    return read_audio(io.BytesIO(data))


def events(client: TestClient, url: str, **headers: str) -> list[tuple[str, dict]]:
    """A job's server-sent events, read to their end."""
    found = []
    with client.stream("GET", url, headers=headers) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for block in "".join(response.iter_text()).split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.splitlines() if line)
            if "event" in fields:
                found.append((fields["event"], json.loads(fields["data"])))
    return found


def test_generate_gives_the_pipelines_sound(client: TestClient, pipeline: TextToSound) -> None:
    answer = client.post("/v1/generate", json={"prompt": "a dog barks", "seed": 7, "duration": 0.8})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "audio/wav"
    assert answer.headers["x-diffsound-seed"] == "7"
    (sound,) = pipeline("a dog barks", seed=7, duration=0.8)
    wave = read(answer.content)
    assert len(wave) == len(sound.wave)
    # 16 bits, and scaled down as a whole if it was above full scale.
    expected = sound.wave / max(1.0, np.abs(sound.wave).max() / 0.99)
    assert np.abs(wave - expected).max() < 1e-4
    assert read_recipe(io.BytesIO(answer.content)) == sound.metadata


@pytest.mark.parametrize(
    ("accept", "format", "media"),
    [
        ("*/*", None, "audio/wav"),
        ("audio/flac", None, "audio/flac"),
        ("audio/ogg;q=0.5, audio/mpeg", None, "audio/mpeg"),
        ("audio/*", "ogg", "audio/ogg"),
        ("audio/x-wav", None, "audio/wav"),
        ("audio/flac", "mp3", "audio/mpeg"),
        ("application/json, audio/wav;q=0.1", None, "application/json"),
    ],
)
def test_accept_and_format(client: TestClient, accept: str, format: str | None, media: str) -> None:
    body = {"prompt": "rain", "seed": 1, "duration": 0.5} | ({"format": format} if format else {})
    answer = client.post("/v1/generate", json=body, headers={"Accept": accept})
    assert answer.headers["content-type"] == media
    if media.startswith("audio"):
        # MP3 pads with silence at both ends.
        assert 11025 <= len(read(answer.content)) < 11025 + 3500


def test_candidates_as_json(client: TestClient, pipeline: TextToSound) -> None:
    body = {"prompt": "rain", "seed": 5, "num_candidates": 3, "duration": 0.5, "format": "flac"}
    answer = client.post("/v1/generate", json=body, headers=JSON).json()
    assert [sound["seed"] for sound in answer["sounds"]] == [5, 6, 7]
    for sound in answer["sounds"]:
        assert sound["seconds"] == 0.5
        assert sound["url"] is None
        assert len(read(base64.b64decode(sound["audio"]))) == 11025
        assert len(sound["waveform"]) == 400
        assert all(low <= high for low, high in sound["waveform"])
    assert client.post("/v1/generate", json=body).status_code == 406


def test_variations_are_the_pipelines(client: TestClient, pipeline: TextToSound) -> None:
    body = {"prompt": "a knock", "seed": 5, "variations": 3, "duration": 0.6}
    takes = pipeline.variations("a knock", 3, seed=5, duration=0.6)
    answer = client.post("/v1/generate", json=body, headers=JSON).json()
    assert [sound["seed"] for sound in answer["sounds"]] == [5, 6, 7]
    for sound, take in zip(answer["sounds"], takes, strict=True):
        made = read(base64.b64decode(sound["audio"]))
        np.testing.assert_allclose(made, take.wave, atol=1e-4)
    job = client.post("/v1/jobs", json=body).json()
    told = events(client, job["events_url"])
    assert [data["item"] for name, data in told if name == "sound"] == [0, 1, 2]
    assert told[-1][0] == "done"
    assert client.post("/v1/generate", json=body).status_code == 406


@pytest.fixture(scope="module")
def ranking(ranking_folder: Path) -> Iterator[tuple[TestClient, TextToSound]]:
    """A server whose bundle can choose among candidates."""
    pipeline = TextToSound.from_pretrained(ranking_folder)
    with TestClient(make_app(pipeline), base_url=f"http://{HOST}") as client:
        wait_ready(client)
        yield client, pipeline


def test_the_best_candidates_come_back(ranking: tuple[TestClient, TextToSound]) -> None:
    client, pipeline = ranking
    body = {"prompt": "a loud dog", "seed": 3, "num_candidates": 4, "duration": 0.5}
    best = pipeline("a loud dog", seed=3, num_candidates=4, keep=2, duration=0.5)
    answer = client.post("/v1/generate", json=body | {"keep": 2}, headers=JSON).json()
    assert [sound["seed"] for sound in answer["sounds"]] == [sound.seed for sound in best]
    scores = [sound["score"] for sound in answer["sounds"]]
    assert scores == pytest.approx([sound.score for sound in best], abs=1e-3)
    # A single one can come as a file.
    alone = client.post("/v1/generate", json=body | {"keep": 1})
    assert alone.headers["x-diffsound-seed"] == str(best[0].seed)
    assert client.get("/v1/bundles").json()["bundles"][0]["ranks"] is True

    job = client.post("/v1/jobs", json=body | {"keep": 2}).json()
    told = events(client, job["events_url"])
    heard = [(data["item"], data["sound"]["seed"]) for name, data in told if name == "sound"]
    assert heard == [(0, best[0].seed), (1, best[1].seed)]
    assert [name for name, _ in told][-3:] == ["sound", "sound", "done"]
    assert len(client.get(job["url"]).json()["sounds"]) == 2

    more = client.post("/v1/generate", json=body | {"keep": 5}, headers=JSON)
    assert more.status_code == 422
    assert "keep must be at most num_candidates, 4" in more.json()["detail"]


def test_a_failed_choice_is_reported_and_the_lane_continues(
    ranking_folder: Path, tmp_path: Path
) -> None:
    copy_bundle(ranking_folder, tmp_path / "copy")
    (tmp_path / "copy" / "captioner" / "model.safetensors").write_bytes(b"damaged")
    pipeline = TextToSound.from_pretrained(tmp_path / "copy")
    body = {"prompt": "a dog", "num_candidates": 2, "keep": 1, "duration": 0.5}
    with TestClient(make_app(pipeline, lanes=1), base_url=f"http://{HOST}") as client:
        wait_ready(client)
        for _ in range(2):
            answer = client.post("/v1/generate", json=body)
            assert answer.status_code == 422, answer.text
            assert "damaged" in answer.json()["detail"]
        assert client.post("/v1/generate", json={"prompt": "a dog"}).status_code == 200


def test_a_bundle_that_cannot_choose_says_so(client: TestClient) -> None:
    body = {"prompt": "rain", "num_candidates": 2, "keep": 1}
    answer = client.post("/v1/generate", json=body)
    assert answer.status_code == 422
    assert "no ranker" in answer.json()["detail"]
    assert client.get("/v1/bundles").json()["bundles"][0]["ranks"] is False


def test_settings_reach_the_pipeline_and_make_the_sound_again(client: TestClient) -> None:
    body = {
        "prompt": "rain", "seed": 5, "duration": 0.5, "negative_prompt": "wind",
        "num_inference_steps": 4, "guidance_scale": 3.5, "temperature": 0.9, "top_k": 5,
        "truncation": 0.9, "sampler": "confidence",
    }  # fmt: skip
    first = client.post("/v1/generate", json=body, headers=JSON).json()["sounds"][0]
    for name in body.keys() - {"prompt", "seed"}:
        assert first["settings"][name] == body[name], name
    names = body.keys() - {"prompt", "seed"}
    again = {name: first["settings"][name] for name in names} | {"prompt": "rain", "seed": 5}
    second = client.post("/v1/generate", json=again, headers=JSON).json()["sounds"][0]
    assert first["audio"] == second["audio"]


def test_urls_of_kept_sounds(client: TestClient) -> None:
    body = {"prompt": "rain", "duration": 0.5, "deliver": "url"}
    sound = client.post("/v1/generate", json=body, headers=JSON).json()["sounds"][0]
    assert sound["audio"] is None
    for format, media in {"wav": "audio/wav", "mp3": "audio/mpeg"}.items():
        file = client.get(sound["url"], params={"format": format})
        assert file.headers["content-type"] == media
        assert len(read(file.content)) >= 11025
    picture = client.get(sound["spectrogram_url"])
    assert Image.open(io.BytesIO(picture.content)).format == "PNG"
    quiet = read(client.get(sound["url"], params={"loudness": -40}).content)
    assert 0 < np.abs(quiet).max() < 0.2


def test_layers_of_a_scene(client: TestClient) -> None:
    body = {"prompt": "rain, then a dog barks", "duration": 2, "layered": True, "seed": 2}
    scene = client.post("/v1/generate", json=body | {"deliver": "url"}, headers=JSON).json()
    sound = scene["sounds"][0]
    assert [layer["text"] for layer in sound["layers"]] == ["rain", "a dog barks"]
    assert sound["settings"]["layered"] is True
    stems = [read(client.get(layer["url"]).content) for layer in sound["layers"]]
    np.testing.assert_allclose(sum(stems), read(client.get(sound["url"]).content), atol=2e-4)
    asked = {"format": "flac", "rate": 48000, "channels": 2, "bit_depth": "24"}
    with soundfile.SoundFile(
        io.BytesIO(client.get(sound["layers"][1]["url"], params=asked).content)
    ) as file:
        assert (file.samplerate, file.channels, file.subtype) == (48000, 2, "PCM_24")
    for number in ("0", "3", "x"):
        answer = client.get(f"{sound['url']}/layers/{number}")
        assert answer.status_code == (404 if number == "3" else 422)
    plain = client.post("/v1/generate", json=body | {"layered": False}, headers=JSON).json()
    assert plain["sounds"][0]["layers"] == []


@pytest.mark.parametrize(
    ("operation", "fields", "seconds"),
    [
        ("inpaint", {"start": 0.2, "end": 0.6}, 1.0),
        ("inpaint", {"start": 0.2, "end": 0.6, "low": 500, "high": 2000}, 1.0),
        ("extend", {"seconds": 0.5}, 1.5),
        ("vary", {"strength": 0.4}, 1.0),
    ],
)
def test_edits_of_an_upload(
    client: TestClient, operation: str, fields: dict[str, float], seconds: float
) -> None:
    data = {"prompt": "a bell", "seed": 3} | fields
    files = {"clip": ("clip.flac", wave_file(format="flac", rate=44100))}
    answer = client.post(f"/v1/edit/{operation}", data=data, files=files)
    assert answer.status_code == 200, answer.text
    wave = read(answer.content)
    assert len(wave) == round(seconds * 22050)
    if operation == "inpaint":
        before = read(files["clip"][1])
        changed = np.abs(wave - before)
        outside = np.r_[changed[: int(0.2 * 22050)], changed[int(0.6 * 22050) :]]
        assert outside.max() < 2e-4
        assert changed.max() > 1e-3


def test_edit_of_a_kept_sound_is_the_pipelines_edit(
    client: TestClient, pipeline: TextToSound
) -> None:
    body = {"prompt": "rain", "duration": 1, "seed": 4, "deliver": "url"}
    kept = client.post("/v1/generate", json=body, headers=JSON).json()["sounds"][0]
    data = {"prompt": "a bell", "seed": 9, "start": 0.2, "end": 0.6, "sound": kept["id"]}
    answer = client.post("/v1/edit/inpaint", data=data, headers=JSON, files={"x": b""})
    assert answer.status_code == 422  # an unknown field is named, not ignored
    assert "'x'" in answer.json()["detail"]
    boundary = {"sound": (None, kept["id"])}
    del data["sound"]
    answer = client.post("/v1/edit/inpaint", data=data, files=boundary)
    assert answer.status_code == 200, answer.text
    original = pipeline("rain", duration=1, seed=4)[0]
    (sound,) = pipeline.inpaint(original, "a bell", 0.2, 0.6, seed=9)
    expected = sound.wave / max(1.0, np.abs(sound.wave).max() / 0.99)
    assert np.abs(read(answer.content) - expected).max() < 1e-4


def test_clips_are_kept_for_editing(client: TestClient) -> None:
    answer = client.post("/v1/clips", files={"clip": ("my clip.wav", wave_file(0.7))})
    assert answer.status_code == 201
    clip = answer.json()
    assert clip["seconds"] == pytest.approx(0.7)
    assert np.abs(np.array(clip["waveform"])).max() == pytest.approx(0.5, abs=0.01)
    assert client.get(clip["spectrogram_url"]).status_code == 200
    job = client.post(
        "/v1/jobs/vary", data={"prompt": "a bell"}, files={"sound": (None, clip["id"])}
    )
    assert job.status_code == 202
    assert events(client, job.json()["events_url"])[-1] == ("done", {})


def test_a_job_and_its_events(client: TestClient) -> None:
    body = {"prompt": "rain", "seed": 2, "num_candidates": 2, "duration": 0.5}
    started = client.post("/v1/jobs", json=body)
    assert started.status_code == 202
    job = started.json()
    assert started.headers["location"] == job["url"]
    heard = events(client, job["events_url"])
    names = [name for name, _ in heard]
    assert names.count("sound") == 2
    assert names[-1] == "done"
    assert names.count("done") == 1
    progress = [data["progress"] for name, data in heard if name == "progress"]
    assert progress == sorted(progress)
    assert {data["item"] for name, data in heard if name == "sound"} == {0, 1}
    for name, data in heard:
        if name == "preview":
            picture = base64.b64decode(data["image"].removeprefix("data:image/jpeg;base64,"))
            assert Image.open(io.BytesIO(picture)).size == (240, 64)
    shown = client.get(job["url"]).json()
    assert shown["status"] == "done"
    assert shown["progress"] == 1
    assert [sound["seed"] for sound in shown["sounds"]] == [2, 3]
    # Read again from the last event on: only the end is new.
    total = len(heard)
    again = events(client, job["events_url"], **{"Last-Event-ID": "1000"})
    assert again == []
    assert len(events(client, job["events_url"])) <= total
    # Cancelling what is done changes nothing.
    assert client.delete(job["url"]).json()["status"] == "done"


def test_a_job_that_fails_says_why(client: TestClient) -> None:
    job = client.post("/v1/jobs", json={"prompt": "rain", "sampler": "official"}).json()
    (last,) = events(client, job["events_url"])
    assert last[0] == "failed"
    assert "'official'" in last[1]["detail"]
    assert client.get(job["url"]).json()["status"] == "failed"


def test_bundles(client: TestClient) -> None:
    answer = client.get("/v1/bundles").json()
    (bundle,) = answer["bundles"]
    assert bundle["name"] == "tiny"
    assert bundle["default"]
    assert bundle["defaults"]["num_inference_steps"] == 3
    assert bundle["examples"]
    assert answer["limits"]["duration"] == 30


BAD_BODIES = [
    ({}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": " \n"}, "empty"),
    ({"prompt": "x" * 501}, "501 characters"),
    ({"prompt": "x" * 5000}, "prompt"),
    ({"prompt": 3}, "prompt"),
    ({"prompt": "rain", "negative_prompt": "x" * 600}, "negative_prompt"),
    ({"prompt": "rain", "duration": 0.1}, "duration"),
    ({"prompt": "rain", "duration": 31}, "duration"),
    ({"prompt": "rain", "duration": "long"}, "duration"),
    ({"prompt": "rain", "num_candidates": 0}, "num_candidates"),
    ({"prompt": "rain", "num_candidates": 9}, "num_candidates"),
    ({"prompt": "rain", "seed": -1}, "seed"),
    ({"prompt": "rain", "seed": 2**63}, "seed"),
    ({"prompt": "rain", "num_inference_steps": 201}, "num_inference_steps"),
    ({"prompt": "rain", "num_inference_steps": 11}, "num_inference_steps"),
    ({"prompt": "rain", "sampler": "magic"}, "sampler"),
    ({"prompt": "rain", "temperature": -1}, "temperature"),
    ({"prompt": "rain", "truncation": 0}, "truncation"),
    ({"prompt": "rain", "format": "aiff"}, "format"),
    ({"prompt": "rain", "loudness": 5}, "loudness"),
    ({"prompt": "rain", "variations": 1}, "variations"),
    ({"prompt": "rain", "variations": 9}, "variations"),
    ({"prompt": "rain", "variations": 2, "num_candidates": 2}, "variations must be given without"),
    ({"prompt": "rain", "variations": 2, "loop": True}, "variations must be given without"),
    ({"prompt": "rain", "trim": True, "loop": True}, "trim would open the loop"),
    ({"prompt": "rain", "magic": 1}, "magic"),
]


@pytest.mark.parametrize(("body", "message"), BAD_BODIES)
def test_bad_input_is_one_line(client: TestClient, body: dict, message: str) -> None:
    answer = client.post("/v1/generate", json=body, headers=JSON)
    assert answer.status_code == 422
    error = answer.json()
    assert error.keys() == {"detail", "request_id"}
    assert message in error["detail"]
    assert "\n" not in error["detail"]
    assert error["request_id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize("setting", [{"temperature": 1e-40}, {"truncation": 1e-300}])
def test_extreme_settings_make_a_sound(client: TestClient, setting: dict[str, float]) -> None:
    body = {"prompt": "rain", "duration": 0.5} | setting
    assert client.post("/v1/generate", json=body).status_code == 200


DEEP = b'{"prompt": "rain", "x": ' + b"[" * 20_000 + b"]" * 20_000 + b"}"
LONG_NUMBER = b'{"prompt": "rain", "seed": ' + b"9" * 5000 + b"}"


@pytest.mark.parametrize(
    ("content", "type", "status", "detail"),
    [
        (b"not json", "application/json", 400, "not valid JSON: Expecting value, at character 0"),
        (b'{"prompt": }', "application/json", 400, "at character 11"),
        (b"[" * 50_000, "application/json", 400, "nested too deeply"),
        (DEEP, "application/json", 400, "nested too deeply"),
        (LONG_NUMBER, "application/json", 400, "too many digits"),
        (b'{"prompt": "rain", "seed": 1e999}', "application/json", 422, "seed"),
        (b'{"prompt": "rain", "duration": NaN}', "application/json", 422, "duration"),
        (b'{"prompt": "rain", "1": 2}', "application/json", 422, "'1'"),
        (b'{"prompt": "\\ud800"}', "application/json", 422, "prompt"),
        (b'{"prompt": "caf\xe9"}', "application/json", 400, "not UTF-8"),
        (b"", "application/json", 422, "the body is empty"),
        (b"[1]", "application/json", 422, "the body is not an object"),
        (b'{"prompt": "rain"}', "text/plain", 415, "is 'text/plain'; send"),
        (b'{"prompt": "rain"}', None, 415, "is missing; send the body as 'application/json'"),
        (b"x", "multipart/form-data", 415, "application/json"),
    ],
)
def test_bodies_that_cannot_be_read(
    client: TestClient, content: bytes, type: str | None, status: int, detail: str
) -> None:
    headers = {} if type is None else {"Content-Type": type}
    answer = client.post("/v1/generate", content=content, headers=headers)
    assert answer.status_code == status, answer.text
    assert detail in answer.json()["detail"]
    assert "\n" not in answer.json()["detail"]


def test_an_edit_sent_as_json_is_told_what_to_send(client: TestClient) -> None:
    answer = client.post("/v1/edit/vary", json={"prompt": "rain", "sound": "x"})
    assert answer.status_code == 415
    assert "send the body as 'multipart/form-data'" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("fields", "clip", "status", "message"),
    [
        ({"start": 0.2, "end": 0.6}, None, 422, "give a clip"),
        ({"start": 0.2, "end": 0.6}, b"", 422, "empty"),
        ({"start": 0.2, "end": 0.6}, b"not audio at all", 422, "cannot read the upload"),
        ({"start": 0.2, "end": 0.6}, wave_file()[:2000], 422, "cut short"),
        ({"start": 0.2, "end": 0.6}, wave_file(0.2), 422, "0.5 s"),
        ({"start": 0.2, "end": 0.6}, wave_file(40), 422, "longer"),
        ({"start": 0.6, "end": 0.2}, wave_file(), 422, "region"),
        ({"start": 0.2, "end": 9}, wave_file(), 422, "region"),
        ({"start": "nan", "end": 9}, wave_file(), 422, "start"),
        ({"start": 0.2, "end": 0.6, "low": 900, "high": 100}, wave_file(), 422, "band"),
        ({"start": 0.2, "end": 0.6, "loop": "true"}, wave_file(), 422, "cannot be a loop"),
        ({"start": 0.2, "end": 0.6, "sound": "none"}, None, 404, "no such sound"),
        ({"start": 0.2, "end": 0.6, "sound": "none"}, wave_file(), 422, "not both"),
    ],
)
def test_edits_that_cannot_be_made(
    client: TestClient, fields: dict, clip: bytes | None, status: int, message: str
) -> None:
    files = {} if clip is None else {"clip": ("x.wav", clip)}
    parts = {name: (None, str(value)) for name, value in ({"prompt": "rain"} | fields).items()}
    answer = client.post("/v1/edit/inpaint", files=parts | files)
    assert answer.status_code == status, answer.text
    assert message in answer.json()["detail"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/jobs/none", 404),
        ("GET", "/v1/jobs/none/events", 404),
        ("DELETE", "/v1/jobs/none", 404),
        ("GET", "/v1/sounds/none", 404),
        ("GET", "/v1/sounds/none/spectrogram.png", 404),
        ("GET", "/v1/generate", 405),
        ("GET", "/nothing", 404),
        ("GET", "/static/../app.py", 404),
        ("GET", "/static/%2e%2e/app.py", 404),
    ],
)
def test_unknown_ids_paths_and_methods(
    client: TestClient, method: str, path: str, status: int
) -> None:
    answer = client.request(method, path)
    assert answer.status_code == status
    assert answer.json().keys() == {"detail", "request_id"}


def test_an_unknown_bundle_is_named_with_the_known_ones(client: TestClient) -> None:
    answer = client.post("/v1/generate", json={"prompt": "rain", "bundle": "huge"})
    assert answer.status_code == 404
    assert "tiny" in answer.json()["detail"]


def test_the_api_describes_itself_and_loads_nothing_from_elsewhere(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/v1/generate", "/v1/edit/inpaint", "/v1/jobs/{name}/events", "/readyz"} <= paths.keys()
    page = client.get("/docs")
    assert page.status_code == 200
    assert "http" not in page.text.replace("openapi", "")


def test_the_document_has_the_limits_that_the_server_enforces(pipeline: TextToSound) -> None:
    """One more than the document allows is refused, what it allows is not."""
    limits = Limits(prompt_chars=40, duration=3, candidates=2, steps=5)
    with TestClient(make_app(pipeline, limits=limits), base_url=f"http://{HOST}") as c:
        wait_ready(c)
        schemas = c.get("/openapi.json").json()["components"]["schemas"]
        fields = schemas["GenerateNow"]["properties"]

        def bound(name: str, keyword: str) -> float:
            (found,) = (
                option[keyword]
                for option in fields[name].get("anyOf", [fields[name]])
                if keyword in option
            )
            return found

        assert bound("prompt", "maxLength") == bound("negative_prompt", "maxLength") == 40
        most = {
            name: bound(name, "maximum")
            for name in ("duration", "num_candidates", "num_inference_steps")
        }
        assert most == {"duration": 3, "num_candidates": 2, "num_inference_steps": 5}
        assert schemas["SoundGeneration"]["properties"]["text"]["maxLength"] == 40
        assert schemas["Inpaint"]["properties"]["num_candidates"]["maximum"] == 2
        least = {"prompt": "x" * 40, "duration": 0.5, "num_inference_steps": 1}
        assert c.post("/v1/generate", json=least, headers=JSON).status_code == 200
        for name, value in most.items():
            assert c.post("/v1/jobs", json=least | {name: value}).status_code == 202
            over = c.post("/v1/jobs", json=least | {name: value + 1})
            assert over.status_code == 422
            assert name in over.json()["detail"]
        assert c.post("/v1/jobs", json=least | {"prompt": "x" * 41}).status_code == 422
        told = c.get("/v1/bundles").json()["limits"]
        assert (told["steps"], told["candidates"]) == (5, 2)


def test_the_document_allows_no_more_steps_than_the_model_has(client: TestClient) -> None:
    fields = client.get("/openapi.json").json()["components"]["schemas"]["GenerateNow"]
    (steps,) = (
        option["maximum"]
        for option in fields["properties"]["num_inference_steps"]["anyOf"]
        if "maximum" in option
    )
    (bundle,) = client.get("/v1/bundles").json()["bundles"]
    assert steps == bundle["timesteps"] == 10
    over = client.post("/v1/jobs", json={"prompt": "rain", "num_inference_steps": steps + 1})
    assert over.status_code == 422


def test_the_document_asks_for_a_key_when_the_server_does(pipeline: TextToSound) -> None:
    document = make_app(pipeline, api_keys=("k",)).openapi()
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    assert "security" not in make_app(pipeline).openapi()


@pytest.mark.parametrize("format", ["AIFF", "AU", "CAF", "W64", "AVR", "VOC"])
def test_uploads_of_other_containers_are_refused(client: TestClient, format: str) -> None:
    buffer = io.BytesIO()
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 22050)
    soundfile.write(buffer, noise, 22050, format=format, subtype="PCM_16")
    answer = client.post("/v1/clips", files={"clip": ("x.wav", buffer.getvalue())})
    assert answer.status_code == 422
    assert "is not supported; give a WAV, FLAC, OGG or MP3 file" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("format", "subtype", "rate"), [("FLAC", "PCM_16", 655_350), ("OGG", "OPUS", 48_000)]
)
def test_a_small_upload_that_decodes_to_much_is_refused(
    client: TestClient, format: str, subtype: str, rate: int
) -> None:
    """Silence compresses to nothing: the length that counts is the decoded one."""
    buffer = io.BytesIO()
    seconds = 60
    silence = np.zeros((rate, 8), np.float32)
    with soundfile.SoundFile(buffer, "w", rate, 8, format=format, subtype=subtype) as file:
        for _ in range(seconds):
            file.write(silence)
    data = buffer.getvalue()
    assert len(data) * 20 < rate * seconds * 8 * 4
    tracemalloc.start()
    answer = client.post("/v1/clips", files={"clip": ("x", data)})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert answer.status_code == 422
    assert peak < 64 * 2**20


def test_many_channels_are_decoded_in_bounded_memory(client: TestClient) -> None:
    """Two thousand seconds' worth of samples in one second of 1000 channels."""
    buffer = io.BytesIO()
    with soundfile.SoundFile(buffer, "w", 8000, 1000, format="WAV", subtype="PCM_U8") as file:
        file.write(np.full((8000, 1000), 0.25, np.float32))
    tracemalloc.start()
    answer = client.post("/v1/clips", files={"clip": ("x.wav", buffer.getvalue())})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert answer.status_code == 201, answer.text
    assert answer.json()["seconds"] == pytest.approx(1.0)
    assert peak < 48 * 2**20


def test_the_length_may_be_automatic_and_the_file_as_asked_for(client: TestClient) -> None:
    for duration in ({}, {"duration": "auto"}):
        body = {"prompt": "rain", "seed": 1, "rate": 44100, "channels": 2, "bit_depth": "24"}
        answer = client.post("/v1/generate", json=body | duration)
        assert answer.status_code == 200, answer.text
        with soundfile.SoundFile(io.BytesIO(answer.content)) as file:
            assert (file.samplerate, file.channels, file.subtype) == (44100, 2, "PCM_24")
            assert file.frames == 44100  # the tiny bundle's second
    asked = {"prompt": "rain", "duration": 0.5, "deliver": "url"}
    (made,) = client.post(
        "/v1/generate", json=asked, headers={"Accept": "application/json"}
    ).json()["sounds"]
    kept = client.get(f"{made['url']}?format=flac&rate=48000&trim=true")
    assert soundfile.info(io.BytesIO(kept.content)).samplerate == 48000
    wrong = client.get(f"{made['url']}?format=mp3&bit_depth=24")
    assert wrong.status_code == 422
    assert "a .mp3 file cannot hold 24 bits" in wrong.json()["detail"]
