import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffsound.data.record import (
    KNOWN_LICENCES,
    MAX_ID,
    AudioLocation,
    Record,
    normalise_licence,
    one_line,
    parse_licences,
    safe_id,
)
from diffsound.errors import DataError, InputError

texts = st.text(max_size=30)


@given(st.text(max_size=300))
def test_ids_fit_a_tar_and_are_stable(text: str) -> None:
    made = safe_id(text)
    assert re.fullmatch(rf"[A-Za-z0-9_-]{{1,{MAX_ID}}}", made)
    assert safe_id(made) == made


def test_good_ids_are_kept_and_long_ones_stay_distinct() -> None:
    assert safe_id("--PJHxphWEs_30") == "--PJHxphWEs_30"
    assert safe_id("_a_") == "_a_"
    assert safe_id("dogs/bark 01") == "dogs_bark_01"
    first, second = safe_id("x" * 200 + "1"), safe_id("x" * 200 + "2")
    assert first != second
    assert len(first) == MAX_ID


@given(
    st.builds(
        Record,
        id=texts,
        audio=st.just(AudioLocation("a.wav")),
        captions=st.lists(texts).map(tuple),
        labels=st.lists(texts).map(tuple),
        tags=st.lists(texts).map(tuple),
        title=texts,
        licence=texts,
        author=texts,
        seconds=st.none() | st.floats(0, 100),
    )
)
def test_records_come_back_from_json(record: Record) -> None:
    fields = json.loads(json.dumps(record.to_json()))
    assert "audio" not in fields
    fields["preparation"] = {"unknown": "to an older reader"}
    assert Record.from_json(fields, record.audio) == record


@pytest.mark.parametrize(
    "fields",
    [
        {"seconds": "<b>"},
        {"title": 7},
        {"captions": "no list"},
        {"labels": [1]},
        {"split": None},
    ],
)
def test_a_field_of_the_wrong_type_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(DataError, match=f"the field '{next(iter(fields))}' of a clip is damaged"):
        Record.from_json({"id": "x", **fields}, AudioLocation("a.tar", member="x.flac"))


def test_captions_become_one_line() -> None:
    assert one_line(" a dog\nbarks,\t loudly\r\n") == "a dog barks, loudly"


@pytest.mark.parametrize(
    ("stated", "name"),
    [
        ("CC0-1.0", "cc0"),
        ("CC0", "cc0"),
        ("http://creativecommons.org/publicdomain/zero/1.0/", "cc0"),
        ("Creative Commons 0", "cc0"),
        ("CC-BY", "cc-by"),
        ("CC BY 4.0", "cc-by"),
        ("Attribution", "cc-by"),
        ("https://creativecommons.org/licenses/by/3.0/", "cc-by"),
        ("https://creativecommons.org/licenses/by-nc/3.0/", "cc-by-nc"),
        ("Attribution Noncommercial", "cc-by-nc"),
        ("CC-BY-SA-3.0", "cc-by-sa"),
        ("cc by-nc-sa 4.0", "cc-by-nc-sa"),
        ("CC BY-NC-ND 2.0", "cc-by-nc-nd"),
        ("CC-Sampling+", "cc-sampling+"),
        ("http://creativecommons.org/licenses/sampling+/1.0/", "cc-sampling+"),
        ("BSD-3-Clause", "bsd"),
        ("MIT", "mit"),
        ("LGPL-2.1", "lgpl"),
        ("GPLv3", "gpl"),
        ("Public Domain", "public-domain"),
        ("all rights reserved", "unknown"),
        ("free for use by the author's friends", "unknown"),
        ("", "unknown"),
        (None, "unknown"),
    ],
)
def test_licence_statements_are_normalised(stated: str | None, name: str) -> None:
    assert normalise_licence(stated) == name


def test_normalised_licences_are_unchanged() -> None:
    assert [normalise_licence(name) for name in KNOWN_LICENCES] == list(KNOWN_LICENCES)


@given(st.text(max_size=60))
def test_any_statement_has_a_known_name(text: str) -> None:
    assert normalise_licence(text) in KNOWN_LICENCES


@given(
    st.sampled_from(["CC BY", "cc-by", "Creative Commons Attribution", "attribution"]),
    st.sampled_from(["nc", "NC", "NonCommercial", "non-commercial"]),
    st.sampled_from(["", " 3.0", "-4.0", " License"]),
)
def test_a_restriction_is_never_lost(free: str, word: str, version: str) -> None:
    assert normalise_licence(f"{free}-{word}{version}") == "cc-by-nc"


def test_a_filter_names_known_licences() -> None:
    assert parse_licences(" cc0, CC-BY,") == {"cc0", "cc-by"}
    with pytest.raises(InputError, match="unknown licence 'cc-bye'"):
        parse_licences("cc0,cc-bye")
    with pytest.raises(InputError, match="no licence named"):
        parse_licences(" , ")
