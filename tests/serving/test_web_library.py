"""The page's library: kept in the browser, marked, searched, taken away and brought back."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import soundfile
from playwright.sync_api import Page, expect

from diffsound.audio.io import encode_audio, read_audio
from diffsound.generation.pipeline import TextToSound
from serving_support import live_server, make_app
from web_support import PATIENCE, READY, OpenPage, choose, entries, make, menu, sounds, until

pytestmark = pytest.mark.browser

# What leaves the page when the newest sound is dragged out of it.
DRAGGED = """() => {
    const dataTransfer = new DataTransfer();
    const grip = document.querySelector('.grip');
    grip.dispatchEvent(new DragEvent('dragstart', {dataTransfer, bubbles: true}));
    const [file] = dataTransfer.files;
    return {
        url: dataTransfer.getData('DownloadURL'), name: file.name, size: file.size,
        draggable: grip.draggable,
    };
}"""


def downloaded(page: Page, click: str, path: Path) -> Path:
    with page.expect_download() as wanted:
        page.click(click)
    wanted.value.save_as(path)
    return path


def library_item(page: Page, name: str) -> None:
    page.click(".library-bar .menu > button")
    page.click(f"#{name}")


def test_sounds_survive_closing_the_tab_and_a_new_server(
    visit: OpenPage, pipeline: TextToSound
) -> None:
    with live_server(make_app(pipeline)) as url:
        page = visit(url)
        make(page, "first")
        make(page, "second", takes=2)
        again = page.context.new_page()
        again.set_default_timeout(PATIENCE)
        page.close()
    with live_server(make_app(pipeline), port=int(url.rsplit(":", 1)[1])):
        again.goto(url)
        expect(again.locator(READY)).to_have_count(3)
        assert again.locator(".card").evaluate_all(
            "cards => cards.map(card => card.getAttribute('aria-label'))"
        ) == ["second, take 1", "second, take 2", "first"]
        # They play, and can be encoded and edited: the page hands the server its own copy.
        again.locator(".card .play").first.click()
        expect(again.locator(".card.playing")).to_have_count(1)
        oldest = again.locator(".card").last
        oldest.locator(".download").click()
        with again.expect_download() as wanted:
            oldest.locator("[data-format=flac]").click()
        assert wanted.value.suggested_filename.endswith(".flac")
        again.fill("#takes", "1")
        again.locator(".card .edit").first.click()
        again.locator("[data-edit=vary]").first.click()
        expect(again.locator(READY)).to_have_count(4)
        assert sounds(again)[0]["settings"]["edit"] == "vary"
        again.close()


def test_a_favourite_is_found_again(visit: OpenPage) -> None:
    page = visit()
    for prompt in ("a dog", "a cat", "rain"):
        make(page, prompt)
    page.locator(".card", has_text="a cat").locator(".favourite").click()
    page.reload()
    expect(page.locator(READY)).to_have_count(3)
    page.click("#only-favourites")
    expect(page.locator(".card:visible .name")).to_have_text(["a cat"])
    page.click("#only-favourites")
    page.fill("#search", "dog")
    expect(page.locator(".card:visible .name")).to_have_text(["a dog"])
    page.fill("#search", "zebra")
    expect(page.locator("#none-found")).to_be_visible()


def test_a_new_name_is_kept_and_names_the_file(visit: OpenPage, tmp_path: Path) -> None:
    page = visit()
    make(page, "a dog", seed="4")
    menu(page.locator(".card"), "Rename")
    page.keyboard.type("Guard dog, far")
    page.keyboard.press("Enter")
    expect(page.locator(".card .name")).to_have_text("Guard dog, far")
    menu(page.locator(".card"), "Rename")
    page.keyboard.type("never mind")
    page.keyboard.press("Escape")
    page.reload()
    expect(page.locator(READY)).to_have_count(1)
    expect(page.locator(".card .name")).to_have_text("Guard dog, far")
    with page.expect_download() as wanted:
        page.click(".grip")
    assert wanted.value.suggested_filename == "guard-dog-far-4.wav"


def test_deleting_can_be_undone(visit: OpenPage) -> None:
    page = visit()
    make(page, "a dog", takes=2)
    menu(page.locator(".card").first, "Delete")
    expect(page.locator(".card")).to_have_count(1)
    assert len(entries(page)) == 1
    page.click("#toast button")
    expect(page.locator(READY)).to_have_count(2)
    assert page.locator(".card .name").all_text_contents() == ["Take 1", "Take 2"]
    library_item(page, "clear")
    expect(page.locator(".card")).to_have_count(0)
    expect(page.locator("#library")).to_be_hidden()
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert entries(page) == []


def test_everything_in_one_zip(visit: OpenPage, tmp_path: Path) -> None:
    page = visit()
    make(page, "a dog", takes=2, seed="3")
    make(page, "a dog", seed="3")
    takes = downloaded(page, ".group .zip:visible", tmp_path / "takes.zip")
    with zipfile.ZipFile(takes) as archive:
        assert archive.testzip() is None
        assert sorted(archive.namelist()) == ["a-dog-take-1-3.wav", "a-dog-take-2-4.wav"]
    page.click(".library-bar .menu > button")
    everything = downloaded(page, "#zip-all", tmp_path / "all.zip")
    with zipfile.ZipFile(everything) as archive:
        assert archive.testzip() is None
        assert len(archive.namelist()) == 3
        wave = read_audio(io.BytesIO(archive.read("a-dog-3.wav")))
    assert len(wave) == 22050
    assert np.abs(wave).max() > 0.001


def test_a_library_moves_to_another_browser(visit: OpenPage, tmp_path: Path) -> None:
    page = visit()
    make(page, "füß & ☂", seed="3")
    page.click(".favourite")
    page.click(".library-bar .menu > button")
    path = downloaded(page, "#export", tmp_path / "library.zip")
    other = visit()
    other.set_input_files("#import-file", path)
    expect(other.locator(READY)).to_have_count(1)
    expect(other.locator("#toast")).to_contain_text("Imported 1 sound")
    assert entries(other) == entries(page)
    other.set_input_files("#import-file", path)  # nothing comes twice
    expect(other.locator("#toast")).to_contain_text("Imported 0 sounds")
    expect(other.locator(".card")).to_have_count(1)
    # A zip that was packed again, compressed, is read too; one that is no library is refused.
    packed = tmp_path / "packed.zip"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    third = visit()
    third.set_input_files("#import-file", packed)
    expect(third.locator(READY)).to_have_count(1)
    bad = tmp_path / "bad.zip"
    bad.write_bytes(b"no zip")
    third.set_input_files("#import-file", bad)
    expect(third.locator("#problem")).to_contain_text("not a zip file")


def test_a_file_is_dragged_in(visit: OpenPage) -> None:
    page = visit()
    tone = 0.5 * np.sin(2 * np.pi * 440 * np.arange(44100) / 44100)
    data = list(encode_audio(tone, 44100, "wav"))
    transfer = page.evaluate_handle(
        """bytes => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([new Uint8Array(bytes)], 'my tone.wav'));
            return transfer;
        }""",
        data,
    )
    page.dispatch_event("body", "dragenter", {"dataTransfer": transfer})
    expect(page.locator("#drop")).to_be_visible()
    page.dispatch_event("body", "drop", {"dataTransfer": transfer})
    expect(page.locator("#drop")).to_be_hidden()
    expect(page.locator(READY)).to_have_count(1)
    expect(page.locator(".card .name")).to_have_text("my tone.wav")


def test_a_result_is_dragged_out_as_a_file(visit: OpenPage) -> None:
    page = visit()
    make(page, "a dog", seed="3")
    dragged = page.evaluate(DRAGGED)
    assert dragged["draggable"]
    assert dragged["url"].startswith("audio/wav:a-dog-3.wav:blob:")
    assert dragged["name"] == "a-dog-3.wav"
    assert dragged["size"] == entries(page)[0]["bytes"]


def test_every_download_is_written_as_the_drawer_says(visit: OpenPage, tmp_path: Path) -> None:
    page = visit()
    make(page, "a dog barks", takes=2, seed="3")
    page.locator(".download").first.click()
    expect(page.locator("[data-format=wav]").first).to_have_text("WAV 22.05 kHz, mono, 16 bit")
    page.locator(".file-settings").first.click()
    expect(page.locator("#settings [name=rate]")).to_be_focused()
    page.keyboard.press("Escape")
    choose(page, rate="48000", channels="2", bit_depth="32f", trim="true", loudness="-30")
    page.reload()  # they are about the visitor's work, and stay
    expect(page.locator(READY)).to_have_count(2)
    expect(page.locator("#changed")).to_have_text("5")

    def kind(data: Path | bytes) -> tuple[int, int, str]:
        with soundfile.SoundFile(io.BytesIO(data) if isinstance(data, bytes) else data) as file:
            return file.samplerate, file.channels, file.subtype

    for format, told, subtype in (
        ("wav", "48 kHz, stereo, 32 bit float, trimmed, -30 LUFS", "FLOAT"),
        ("flac", "48 kHz, stereo, 24 bit, trimmed, -30 LUFS", "PCM_24"),
        ("ogg", "48 kHz, stereo, trimmed, -30 LUFS", "VORBIS"),
    ):
        page.locator(".download").first.click()
        item = page.locator(f"[data-format={format}]").first
        expect(item.locator("small")).to_have_text(told)
        with page.expect_download() as wanted:
            item.click()
        wanted.value.save_as(tmp_path / f"x.{format}")
        assert kind(tmp_path / f"x.{format}") == (48000, 2, subtype)
    with zipfile.ZipFile(downloaded(page, ".group .zip", tmp_path / "x.zip")) as archive:
        assert {kind(archive.read(name)) for name in archive.namelist()} == {(48000, 2, "FLOAT")}
    page.locator(".grip").first.hover()
    until(page, f"({DRAGGED})().size > 200000")  # 1 s of these settings are 384 kB
    page.click("#open-settings")
    page.click("#reset-settings")
    page.keyboard.press("Escape")
    assert page.evaluate("localStorage.getItem('diffsound-files')") == "{}"


def test_settings_are_used_again(visit: OpenPage) -> None:
    page = visit()
    make(page, "a dog", seed="3", guidance_scale="3.5")
    page.click("#open-settings")
    page.click("#reset-settings")
    page.click("#settings footer .primary")
    expect(page.locator("#changed")).to_be_hidden()
    page.fill("#prompt", "something else")
    menu(page.locator(".card"), "Use these settings again")
    expect(page.locator("#prompt")).to_have_value("a dog")
    expect(page.locator("#changed")).to_have_text("2")
    assert page.input_value("[name=guidance_scale]") == "3.5"
    assert page.input_value("#seed") == "3"


def test_a_library_of_another_shape_is_refused(visit: OpenPage, tmp_path: Path) -> None:
    page = visit()
    path = tmp_path / "other.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.json", json.dumps({"sounds": []}))
    page.set_input_files("#import-file", path)
    expect(page.locator("#problem")).to_contain_text("not a library of sounds")
    assert entries(page) == []
