import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffsound.data.record import MAX_ID, AudioLocation, Record, one_line, safe_id
from diffsound.errors import DataError

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
