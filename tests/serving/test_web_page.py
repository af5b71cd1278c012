"""The web page, in a real Chromium: making, hearing and editing sounds."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import numpy as np
import pytest
from playwright.sync_api import Browser, expect

from diffsound.audio.io import describe_audio, encode_audio, read_audio
from diffsound.generation.pipeline import TextToSound
from diffsound.model.bundle import Bundle
from diffsound.serving.app import WEB, create_app
from diffsound.serving.settings import ServerSettings
from serving_support import WatchedPipeline, live_server, make_app, wait_for_reader
from support import with_defaults
from web_support import (
    PATIENCE,
    READY,
    OpenPage,
    choose,
    drag,
    make,
    selection,
    sounds,
    until,
    wave_of,
)

pytestmark = pytest.mark.browser

# What comes out of a card's player on its way to the loudspeaker: peak and length.
HEAR = """async () => {
    const audio = document.querySelector('.card audio');
    const context = new AudioContext();
    const meter = context.createAnalyser();
    context.createMediaElementSource(audio).connect(meter).connect(context.destination);
    const samples = new Float32Array(meter.fftSize);
    let peak = 0;
    audio.currentTime = 0;
    await audio.play();
    while (!audio.ended) {
        meter.getFloatTimeDomainData(samples);
        peak = Math.max(peak, ...samples.map(Math.abs));
        await new Promise((resolve) => setTimeout(resolve, 20));
    }
    return {peak, seconds: audio.duration};
}"""


def tone_file(path: Path, hertz: float, seconds: float = 1.0) -> Path:
    times = np.arange(round(44100 * seconds)) / 44100
    path.write_bytes(encode_audio(0.5 * np.sin(2 * np.pi * hertz * times), 44100, "flac"))
    return path


def test_type_press_enter_hear(visit: OpenPage, server: str, pipeline: TextToSound) -> None:
    page = visit()
    make(page, "a dog barks", takes=2, seed="7")
    # The first take that is ready plays by itself, to its end.
    until(page, "[...document.querySelectorAll('.card audio')].some(a => a.ended)")
    heard = page.evaluate(HEAR)
    assert heard["seconds"] == pytest.approx(1.0, abs=0.01)
    assert heard["peak"] > 0.01
    (expected,) = pipeline("a dog barks", seed=7, duration=1.0)
    expected_wave = expected.wave / max(1.0, np.abs(expected.wave).max() / 0.99)
    assert np.abs(wave_of(server, sounds(page)[0]) - expected_wave).max() < 1e-4
    assert [sound["seed"] for sound in sounds(page)] == [7, 8]
    assert page.locator(".card").first.get_attribute("aria-label") == "a dog barks, take 1"


def test_waveform_and_spectrogram_are_drawn(visit: OpenPage) -> None:
    page = visit()
    make(page, "rain")
    painted = """() => [...document.querySelector('.wave > div').shadowRoot
        .querySelectorAll('canvas')].map(c => [c.clientHeight, c.getContext('2d')
            .getImageData(0, 0, c.width, c.height).data.some((v, i) => i % 4 < 3 && v > 60)])"""
    until(page, f"({painted})().some(([height, on]) => height === 136 && on)")
    heights = {height for height, on in page.evaluate(painted) if on}
    assert heights == {96, 136}


def test_a_tone_lies_where_the_frequency_axis_says(visit: OpenPage, tmp_path: Path) -> None:
    page = visit()
    page.set_input_files("#upload", tone_file(tmp_path / "tone.flac", 2000))
    expect(page.locator(READY)).to_have_count(1)
    row = """() => {
        const root = document.querySelector('.wave > div').shadowRoot;
        const canvas = [...root.querySelectorAll('canvas')].find(c => c.clientHeight === 136);
        if (!canvas) return null;
        const middle = canvas.getContext('2d')
            .getImageData(canvas.width / 2, 0, 1, canvas.height).data;
        const bright = Array.from({length: canvas.height}, (_, y) =>
            middle[4 * y] + middle[4 * y + 1] + middle[4 * y + 2]);
        const most = Math.max(...bright);
        return most > 300 ? bright.indexOf(most) * 136 / canvas.height : null;
    }"""
    until(page, f"({row})() !== null")
    mark = page.locator(".hertz li", has_text="2 kHz")
    assert mark.count() == 1
    assert page.evaluate(row) == pytest.approx(
        mark.evaluate("mark => parseFloat(mark.style.top)"), abs=3
    )
    assert page.locator(".hertz li").all_text_contents()[0] == "100 Hz"
    ticks = page.evaluate(
        """() => [...document.querySelector('.wave > div').shadowRoot
            .querySelectorAll('[part~=timeline-notch-primary]')].map(mark => mark.textContent)"""
    )
    assert ticks[0] == "0 s"


def test_the_spectrogram_shows_while_it_is_made_and_stop_stops(
    visit: OpenPage, watched: WatchedPipeline
) -> None:
    app = make_app(watched, lanes=1)
    with live_server(app) as url:
        page = visit(url)
        watched.hold_after = watched.steps + 2
        watched.gate.clear()  # until the page listens: previews are made for listeners only
        page.fill("#takes", "1")
        page.fill("#prompt", "rain")
        page.press("#prompt", "Enter")
        wait_for_reader(app)
        watched.gate.set()
        page.wait_for_selector(".preview[src^='data:image/jpeg']")
        assert page.locator(".scope progress").evaluate("bar => bar.value") == pytest.approx(
            1 / 3, abs=0.4
        )
        # Nothing can be done with a sound that is not there yet.
        enabled = page.locator(".card button:enabled:visible")
        assert enabled.count() == 0
        page.click("#stop")
        expect(page.locator("#toast")).to_contain_text("Stopped.")
        expect(page.locator(".card")).to_have_count(0)
        watched.hold_after = None
        watched.gate.set()
        make(page, "rain again")
        assert enabled.count() > 5


def test_a_region_is_regenerated_and_the_rest_stays(visit: OpenPage, server: str) -> None:
    page = visit()
    make(page, "rain", seed="3")
    expect(page.locator("[data-edit=inpaint]")).to_be_hidden()
    drag(page, 0.4, 0.7)
    assert selection(page) == {
        "start": pytest.approx(0.4, abs=0.02), "end": pytest.approx(0.7, abs=0.02)
    }  # fmt: skip
    page.fill(".edit-panel [name=prompt]", "a bell")
    choose(page, seed="5")
    page.click("[data-edit=inpaint]")
    expect(page.locator(READY)).to_have_count(2)
    new, old = sounds(page)
    assert new["settings"]["edit"] == "inpaint"
    assert new["prompt"] == "a bell"
    before, after = wave_of(server, old), wave_of(server, new)
    assert len(before) == len(after) == 22050
    # Both files were scaled as a whole if they were above full scale.
    quiet = slice(0, int(0.38 * 22050))
    scale = np.dot(before[quiet], after[quiet]) / np.dot(before[quiet], before[quiet])
    changed = np.abs(after - scale * before)
    assert changed[quiet].max() < 1e-3
    assert changed[int(0.72 * 22050) :].max() < 1e-3
    assert changed[int(0.45 * 22050) : int(0.65 * 22050)].max() > 1e-3


def test_a_box_on_the_spectrogram_edits_a_band_of_frequencies(visit: OpenPage) -> None:
    page = visit()
    make(page, "rain")
    drag(page, 0.2, 0.6, top=0.3, bottom=0.8)
    chosen = selection(page)
    # 2595 log10(1 + f / 700) is linear from the bottom to the top, 11025 Hz.
    whole = 2595 * np.log10(1 + 11025 / 700)
    for name, share in (("high", 0.7), ("low", 0.2)):
        expected = 700 * (10 ** (share * whole / 2595) - 1)
        assert chosen[name] == pytest.approx(expected, rel=0.06)
    assert chosen["start"] == pytest.approx(0.2, abs=0.02)
    page.click("[data-edit=inpaint]")
    expect(page.locator(READY)).to_have_count(2)
    settings = sounds(page)[0]["settings"]
    assert (settings["low"], settings["high"]) == (chosen["low"], chosen["high"])
    # A flat drag means all frequencies.
    drag(page, 0.3, 0.5, top=0.5, bottom=0.53)
    assert set(selection(page)) == {"start", "end"}


def test_the_best_of_several_takes(visit: OpenPage, ranking_folder: Path) -> None:
    pipeline = TextToSound.from_pretrained(ranking_folder)
    best = pipeline("a loud dog", num_candidates=3, keep=2, seed=5, duration=1.0)
    with live_server(make_app(pipeline)) as url:
        page = visit(url)
        page.fill("#takes", "3")
        choose(page, keep="2", seed="5")
        page.fill("#prompt", "a loud dog")
        page.press("#prompt", "Enter")
        expect(page.locator(READY)).to_have_count(2)
        assert [sound["seed"] for sound in sounds(page)] == [sound.seed for sound in best]
        expect(page.locator(".group > header p")).to_contain_text("best 2 of 3")
        # Fit in words, and what the words mean on hover.
        fit = page.locator(".card .fit").first
        expect(fit).to_contain_text("fit")
        expect(fit.locator(".tip-text")).to_be_hidden()
        fit.hover()
        expect(fit.locator(".tip-text")).to_contain_text("between takes of one prompt")
        # More than are made cannot be kept: the drawer says so, and nothing is sent.
        page.fill("#takes", "1")
        page.press("#prompt", "Enter")
        expect(page.locator("#settings")).to_be_visible()
        assert not page.locator("#keep").evaluate("field => field.validity.valid")
        page.wait_for_timeout(200)
        assert page.locator(".group").count() == 1


def test_a_scene_shows_its_layers(visit: OpenPage, tiny_bundle: Bundle, tmp_path: Path) -> None:
    pipeline = TextToSound(with_defaults(tiny_bundle, layered=True, duration=3.0))
    with live_server(make_app(pipeline)) as url:
        page = visit(url)
        make(page, "rain, then a dog barks far away")
        layers = page.locator(".layers li")
        expect(layers).to_have_count(2)
        expect(layers.nth(1)).to_contain_text("a dog barks, far away")
        with page.expect_download() as wanted:
            layers.nth(0).get_by_role("button").click()
        wanted.value.save_as(tmp_path / "stem.wav")
        assert wanted.value.suggested_filename.endswith("-layer1.wav")
        assert np.abs(read_audio(tmp_path / "stem.wav", 22050)).max() > 0
        choose(page, rate="44100")
        with page.expect_download() as wanted:
            layers.nth(0).get_by_role("button").click()
        wanted.value.save_as(tmp_path / "stem.wav")
        assert ", 44100 Hz, mono" in describe_audio(tmp_path / "stem.wav")
        make(page, "a dog barks")
        expect(page.locator(".layers:visible")).to_have_count(1)


def test_a_loop_is_asked_for_beside_the_prompt(visit: OpenPage) -> None:
    page = visit()
    page.click("#loop")
    with page.expect_request(lambda request: request.method == "POST") as asked:
        make(page, "rain")
    assert asked.value.post_data_json["loop"] is True


def test_a_bundle_that_cannot_choose_offers_no_choice(visit: OpenPage) -> None:
    page = visit()
    page.click("#open-settings")
    expect(page.locator("#seed")).to_be_visible()
    expect(page.locator("#keep")).to_be_hidden()


def test_extend_and_vary(visit: OpenPage) -> None:
    page = visit()
    make(page, "rain")
    page.click(".edit")
    page.fill("[name=seconds]", "0.5")
    page.click("[data-edit=extend]")
    expect(page.locator(READY)).to_have_count(2)
    assert sounds(page)[0]["seconds"] == pytest.approx(1.5)
    page.click(".edit >> nth=0")
    page.click("[data-edit=vary] >> nth=0")
    expect(page.locator(READY)).to_have_count(3)
    assert sounds(page)[0]["settings"]["edit"] == "vary"


@pytest.mark.parametrize("format", ["wav", "flac", "ogg", "mp3"])
def test_download(visit: OpenPage, tmp_path: Path, format: str) -> None:
    page = visit()
    make(page, "Rain, on a roof!", seed="3")
    page.click(".card .download")
    with page.expect_download() as download:
        page.click(f"[data-format={format}]")
    assert download.value.suggested_filename == f"rain-on-a-roof-3.{format}"
    path = tmp_path / f"x.{format}"
    download.value.save_as(path)
    wave = read_audio(path)
    assert 22050 <= len(wave) < 22050 + 3500
    assert np.abs(wave).max() > 0.001


def test_an_uploaded_recording_can_be_edited_and_a_bad_one_is_explained(
    visit: OpenPage, tmp_path: Path
) -> None:
    page = visit()
    bad = tmp_path / "bad.wav"
    bad.write_bytes(b"this is no audio")
    page.set_input_files("#upload", bad)
    expect(page.locator("#problem")).to_contain_text("cannot read the upload")
    page.set_input_files("#upload", tone_file(tmp_path / "tone.flac", 440))
    expect(page.locator(READY)).to_have_count(1)
    expect(page.locator("#problem")).to_be_hidden()
    page.fill("#takes", "1")
    page.click(".edit")
    page.click("[data-edit=vary]")  # without a text: the field asks for one
    expect(page.locator(".edit-panel [name=prompt]")).to_be_focused()
    page.fill(".edit-panel [name=prompt]", "a bell")
    page.click("[data-edit=vary]")
    expect(page.locator(READY)).to_have_count(2)


def test_mistakes_are_explained_until_they_are_put_right(visit: OpenPage) -> None:
    page = visit()
    page.fill("#prompt", "   ")
    page.press("#prompt", "Enter")
    expect(page.locator("#problem")).to_contain_text("Describe a sound first")
    page.press("#prompt", "r")
    expect(page.locator("#problem")).to_be_hidden()
    # What the form lets through and the server does not.
    choose(page, sampler="official", temperature="0.5")
    page.fill("#prompt", "rain")
    page.press("#prompt", "Enter")
    expect(page.locator("#problem")).to_contain_text("official")
    expect(page.locator(".card")).to_have_count(0)
    choose(page, sampler="")
    expect(page.locator("#problem")).to_be_hidden()
    make(page, "rain")
    # An edit's mistake is explained at its sound.
    choose(page, sampler="official")
    page.click(".edit")
    page.click("[data-edit=vary]")
    expect(page.locator(".card .problem:visible")).to_contain_text("official")
    choose(page, sampler="")
    page.click("[data-edit=vary]")
    expect(page.locator(READY)).to_have_count(2)
    assert page.locator(".card .problem:visible").count() == 0


def test_the_page_notices_when_the_server_is_back(visit: OpenPage, server: str) -> None:
    page = visit()
    page.route("**/v1/jobs", lambda route: route.abort())
    page.route("**/readyz", lambda route: route.abort())
    page.fill("#prompt", "rain")
    page.press("#prompt", "Enter")
    expect(page.locator("#problem")).to_contain_text("does not answer")
    page.unroute("**/v1/jobs")
    page.unroute("**/readyz")
    expect(page.locator("#problem")).to_be_hidden()


def test_two_visitors_at_once(visit: OpenPage) -> None:
    first, second = visit(), visit()
    for page, prompt in ((first, "a dog"), (second, "a cat")):
        page.fill("#prompt", prompt)
        page.press("#prompt", "Enter")
    for page, prompt in ((first, "a dog"), (second, "a cat")):
        expect(page.locator(READY)).to_have_count(2)
        assert {sound["prompt"] for sound in sounds(page)} == {prompt}


def test_a_loop_goes_on_past_the_end_and_follows_the_selection(visit: OpenPage) -> None:
    page = visit()
    make(page, "rain")
    until(page, "document.querySelector('.card audio').ended")
    page.click(".card .loop")
    page.click(".card .play")
    page.wait_for_timeout(1500)  # longer than the sound
    assert page.locator(".card.playing").count() == 1
    drag(page, 0.5, 0.7)
    places = []
    for _ in range(12):
        places.append(page.evaluate("document.querySelector('.card audio').currentTime"))
        page.wait_for_timeout(60)
    assert min(places) >= 0.45
    assert max(places) <= 0.75
    page.click(".card .play")
    expect(page.locator(".card.playing")).to_have_count(0)


def test_volume_is_one_for_all_and_remembered(visit: OpenPage) -> None:
    page = visit()
    make(page, "rain", takes=2)
    page.locator("#volume").fill("0.3")
    levels = "[...document.querySelectorAll('.card audio')].map(audio => audio.volume)"
    assert page.evaluate(levels) == [0.3, 0.3]
    page.reload()
    expect(page.locator(READY)).to_have_count(2)
    assert page.evaluate(levels) == [0.3, 0.3]


def test_zoom_widens_the_picture(visit: OpenPage) -> None:
    page = visit()
    make(page, "rain")
    width = """() => document.querySelector('.wave > div').shadowRoot
        .querySelector('.wrapper').getBoundingClientRect().width"""
    before = page.evaluate(width)
    page.click(".zoom-in")
    until(page, f"({width})() > {1.8 * before}")
    page.click(".zoom-out")
    until(page, f"Math.abs(({width})() - {before}) < 2")


def test_a_and_b_are_heard_from_the_same_moment(visit: OpenPage) -> None:
    page = visit()
    page.locator("#duration").fill("4")
    make(page, "rain", takes=2)
    cards = page.locator(".card")
    for place in (0, 1):
        cards.nth(place).locator(".compare-button").click()
    bar = page.locator("#compare")
    expect(bar.locator("[data-side=b]")).to_contain_text("rain, take 2")
    playing = "[...document.querySelectorAll('.card audio')].map(audio => !audio.paused)"
    if not page.evaluate(playing)[0]:
        bar.locator(".play").click()
    until(page, "document.querySelectorAll('.card audio')[0].currentTime > 0.5")
    at = page.evaluate("document.querySelectorAll('.card audio')[0].currentTime")
    page.keyboard.press("x")
    until(page, f"({playing})[1]")
    assert page.evaluate(playing) == [False, True]
    assert page.evaluate("document.querySelectorAll('.card audio')[1].currentTime") >= at - 0.05
    bar.locator(".close").click()
    expect(bar).to_be_hidden()
    assert page.evaluate(playing) == [False, False]


def test_a_server_with_keys_asks_once(
    visit: OpenPage, browser: Browser, pipeline: TextToSound
) -> None:
    with live_server(make_app(pipeline, api_keys=("open sesame",))) as url:
        page = browser.new_page()
        page.set_default_timeout(PATIENCE)
        page.goto(url)
        page.fill("#key", "open sesame")
        page.keyboard.press("Enter")
        page.wait_for_selector("html[data-ready]")
        make(page, "rain")
        page.close()


def test_the_card_and_the_api_say_how_well_the_prompt_is_known(
    visit: OpenPage, knowing: Bundle
) -> None:
    with live_server(make_app(TextToSound(knowing))) as url:
        page = visit(url)
        make(page, "quantum entanglement")
        badge = page.locator(".card .coverage").first
        expect(badge.locator(".tip-word")).to_have_text("Unfamiliar")
        badge.hover()
        expect(badge.locator(".tip-text")).to_contain_text("nothing like this")
        expect(badge.locator(".tip-text")).to_contain_text("Nearest in its training: “")
        asked = {"prompt": "a dog barks", "duration": 0.5}
        wanted = {"Accept": "application/json"}
        answer = httpx.post(f"{url}/v1/generate", json=asked, headers=wanted, timeout=60).json()
        (sound,) = answer["sounds"]
        assert sound["coverage"]["verdict"] == "known"
        assert sound["coverage"]["nearest"][0] == {"caption": "a dog barks", "similarity": 1.0}


def test_examples_of_the_bundled_model_are_heard_before_anything_is_made(
    visit: OpenPage, pipeline: TextToSound
) -> None:
    manifest = json.loads((WEB / "examples" / "examples.json").read_text(encoding="utf-8"))
    app = create_app(
        ServerSettings(hosts=("127.0.0.1",)), load=lambda: {manifest["bundle"]: pipeline}
    )
    with live_server(app) as url:
        page = visit(url)
        tiles = page.locator(".tile")
        expect(tiles).to_have_count(6)
        tiles.nth(1).locator(".play").click()
        expect(page.locator(".tile.playing")).to_have_count(1)
        tiles.nth(2).locator(".play").click()  # one plays at a time
        expect(tiles.nth(2)).to_have_class("tile playing")
        expect(page.locator(".tile.playing")).to_have_count(1)
        tiles.nth(0).locator(".use").click()
        example = manifest["examples"][0]
        expect(page.locator("#prompt")).to_have_value(example["prompt"])
        assert float(page.input_value("#duration")) == example["duration"]


def test_another_models_page_offers_its_own_prompts(visit: OpenPage) -> None:
    page = visit()
    expect(page.locator("#examples")).to_be_hidden()
    page.locator("#ideas button").first.click()
    expect(page.locator("#prompt")).to_have_value("a dog barks")


def test_the_length_is_automatic_until_it_is_set(visit: OpenPage) -> None:
    page = visit()
    page.click("#loop")
    expect(page.locator("#auto")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#duration-shown")).to_have_text("auto")
    page.locator("#duration").fill("4")
    expect(page.locator("#duration-shown")).to_have_text("4 s")
    page.click("#auto")
    expect(page.locator("#duration-shown")).to_have_text("auto")
    page.fill("#prompt", "rain")
    with page.expect_request("**/v1/jobs") as asked:
        page.press("#prompt", "Enter")
    body = json.loads(asked.value.post_data or "")
    assert body["loop"] is True
    assert body["duration"] == "auto"
