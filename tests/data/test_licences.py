import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffsound.data.record import KNOWN_LICENCES, normalise_licence, parse_licences
from diffsound.errors import InputError


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
