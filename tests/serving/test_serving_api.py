"""The HTTP API, endpoint by endpoint."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from diffsound.audio.io import encode_audio, read_audio, read_metadata
from diffsound.bundle import copy_bundle
from diffsound.pipeline import TextToSound
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
    assert json.loads(read_metadata(io.BytesIO(answer.content))["diffsound"]) == sound.metadata


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
    assert "keep must be from 1" in more.json()["detail"]


def test_a_choice_that_fails_is_told_and_takes_no_lane(
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
    job = client.post("/v1/jobs", json={"prompt": "rain", "num_inference_steps": 77}).json()
    (last,) = events(client, job["events_url"])
    assert last[0] == "failed"
    assert "num_inference_steps" in last[1]["detail"]
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
    ({"prompt": "rain", "num_candidates": 8, "duration": 20}, "160 s"),
    ({"prompt": "rain", "seed": -1}, "seed"),
    ({"prompt": "rain", "seed": 2**63}, "seed"),
    ({"prompt": "rain", "num_inference_steps": 201}, "num_inference_steps"),
    ({"prompt": "rain", "num_inference_steps": 11}, "num_inference_steps"),
    ({"prompt": "rain", "sampler": "magic"}, "sampler"),
    ({"prompt": "rain", "temperature": -1}, "temperature"),
    ({"prompt": "rain", "temperature": 1e-40}, "temperature"),
    ({"prompt": "rain", "truncation": 0}, "truncation"),
    ({"prompt": "rain", "truncation": 1e-300}, "truncation"),
    ({"prompt": "rain", "format": "aiff"}, "format"),
    ({"prompt": "rain", "loudness": 5}, "loudness"),
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


@pytest.mark.parametrize(
    ("content", "type", "statuses"),
    [
        (b"not json", "application/json", {422}),
        (b"[" * 50_000, "application/json", {400, 422}),
        (b'{"prompt": "rain", "seed": ' + b"9" * 5000 + b"}", "application/json", {400, 422}),
        (b'{"prompt": "rain", "duration": NaN}', "application/json", {422}),
        (b'{"prompt": "\\ud800"}', "application/json", {422}),
        (b"\xff\xfe", "application/json", {400, 422}),
        (b"", "application/json", {422}),
        (b'{"prompt": "rain"}', "text/plain", {422}),
        (b"x", "multipart/form-data", {400, 422}),
    ],
)
def test_bodies_that_are_not_what_they_say(
    client: TestClient, content: bytes, type: str, statuses: set[int]
) -> None:
    answer = client.post("/v1/generate", content=content, headers={"Content-Type": type})
    assert answer.status_code in statuses, answer.text
    assert "\n" not in answer.json()["detail"]


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
        ({"start": 0.2, "end": 0.6, "sound": "none"}, None, 404, "no such sound"),
        ({"start": 0.2, "end": 0.6, "sound": "none"}, wave_file(), 422, "not both"),
    ],
)
def test_bad_edits(
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
def test_what_is_not_there(client: TestClient, method: str, path: str, status: int) -> None:
    answer = client.request(method, path)
    assert answer.status_code == status
    assert answer.json().keys() == {"detail", "request_id"}


def test_an_unknown_bundle_is_named_with_the_known_ones(client: TestClient) -> None:
    answer = client.post("/v1/generate", json={"prompt": "rain", "bundle": "huge"})
    assert answer.status_code == 404
    assert "tiny" in answer.json()["detail"]


def test_the_api_describes_itself_without_help_from_elsewhere(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/v1/generate", "/v1/edit/inpaint", "/v1/jobs/{name}/events", "/readyz"} <= paths.keys()
    page = client.get("/docs")
    assert page.status_code == 200
    assert "http" not in page.text.replace("openapi", "")
