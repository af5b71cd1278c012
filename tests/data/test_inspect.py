"""What a folder's summary counts and what its page shows."""

import base64
import io
import re
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import soundfile
from PIL import Image
from playwright.sync_api import Page as BrowserPage

from browser_support import HOSTILE, assert_inert
from diffsound.data.clip import PreparedClip, PrepareSettings
from diffsound.data.inspect import (
    histogram,
    reason_kind,
    report_html,
    summarise,
    write_report,
)
from diffsound.data.prepare import prepare, write_clips
from diffsound.data.record import Record
from diffsound.data.shards import (
    ClipsIndex,
    Duplicates,
    PreparedData,
    Rejected,
    read_index,
    write_index,
)
from diffsound.data.sources import open_source
from diffsound.errors import DataError


class Page(HTMLParser):
    """Tags and their attributes, with a check that what opens is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def test_the_summary_counts_clips_splits_and_labels(
    sounds: Path, tmp_path: Path, settings: PrepareSettings
) -> None:
    (sounds / "audio/clip0.wav").write_bytes(b"broken")
    wave, rate = soundfile.read(sounds / "audio/clip5.wav")
    soundfile.write(sounds / "audio/clip2.wav", 0.5 * wave, rate)
    prepare(open_source(str(sounds)), tmp_path / "out", settings)
    summary = summarise(PreparedData.open(tmp_path / "out"))
    assert summary.clips == 6
    assert summary.splits == {"train": 4, "valid": 2}
    assert summary.labels == {"dog": 4, "rain": 2}
    assert summary.licences == {"cc-by": 2, "cc-by-nc": 2, "cc0": 2}
    assert summary.seconds["longest"] == 0.5
    assert sum(summary.rejected.values()) == len(summary.rejected_clips) == 1
    assert summary.duplicates_across_splits == len(summary.near_duplicates) == 1
    assert summary.captions["clips"] == 6
    assert summary.to_json()["near_duplicates"][0]["ids"] == ["clip2", "clip5"]


def test_reasons_are_counted_without_their_details() -> None:
    assert reason_kind("too short: 0.031 s") == "too short"
    assert reason_kind("it is cut short, 512 bytes are missing") == "it is cut short"
    assert reason_kind("licence cc-by-nc is not wanted") == "licence cc-by-nc is not wanted"


def test_the_page_has_pictures_and_players_that_work(
    prepared: PreparedData, tmp_path: Path
) -> None:
    write_report(prepared, tmp_path / "page.html", clips=4, seed=1)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    page = Page(text)
    pictures, players = page.all("img"), page.all("audio")
    assert len(pictures) == len(players) == 4
    for kind, element in [("image/png", e) for e in pictures] + [("audio/ogg", e) for e in players]:
        head, _, content = str(element["src"]).partition(",")
        assert head == f"data:{kind};base64"
        decoded = io.BytesIO(base64.b64decode(content))
        if kind == "image/png":
            assert Image.open(decoded).size == (250, 84)
        else:
            assert soundfile.info(decoded).frames > 1000
    assert len(page.all("svg")) >= 5
    # One file, no network: what is loaded is inside.
    assert not re.search(r"src=[\"'](?!data:)|<link|@import|url\(", text)
    shown = [re.findall(r"<small>(\w+)", report_html(prepared, clips=4, seed=s)) for s in (1, 1, 2)]
    assert shown[0] == shown[1] != shown[2]


@pytest.mark.browser
def test_hostile_text_in_every_field_is_inert_in_a_browser(
    page: BrowserPage, prepared: PreparedData, tmp_path: Path, settings: PrepareSettings
) -> None:
    texts = {
        field.name: (HOSTILE,) if field.type == "tuple[str, ...]" else HOSTILE
        for field in fields(Record)
        if field.name not in ("id", "audio", "seconds")
    }
    assert {"captions", "labels", "title", "split", "licence", "author", "url"} <= set(texts)
    wave = (prepared.wave(0) * 32768).astype("int16")
    clips = [
        PreparedClip(replace(prepared.records[0], **texts), wave, {}),
        # An address that is fit for a link, with the rest behind it.
        PreparedClip(
            replace(prepared.records[1], **texts | {"url": f"https://example.org/{HOSTILE}"}),
            wave,
            {},
        ),
        PreparedClip(replace(prepared.records[2], url="javascript:window.hacked=1"), wave, {}),
    ]
    folder = tmp_path / "hostile"
    write_clips(folder, clips, settings, source=HOSTILE)
    index = read_index(ClipsIndex, folder)
    assert index is not None
    ids = (clips[0].record.id, clips[1].record.id)
    told = {
        "rejected": (Rejected(id=HOSTILE, reason=HOSTILE),),
        "notes": (HOSTILE,),
        "near_duplicates": (Duplicates(ids=ids, correlation=1),),
    }
    write_index(index.model_copy(update=told), folder)
    write_report(PreparedData.open(folder), folder / "report.html")
    assert_inert(page, folder / "report.html")
    assert page.locator(".clip").count() == 3
    assert page.locator("a").count() == 1
    page.get_by_label("Search these clips").fill("take 2")
    assert page.locator(".clip:visible").count() == 1


def test_an_unwritable_page_is_one_line(prepared: PreparedData, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot write"):
        write_report(prepared, tmp_path / "nowhere" / "page.html", clips=1)


def test_histograms_count_every_value() -> None:
    counts = histogram([0, 0.5, 1, 2, 2], (0, 1, 2), " s")
    assert counts == {"0–1 s": 2, "1–2 s": 3}
