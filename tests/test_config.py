"""Strict configs: unknown and ill-typed keys are named, overrides are applied."""

import os
from pathlib import Path

import pytest

from diffsound.config import Config, apply_overrides, dump_yaml, load_config, parse_config
from diffsound.errors import ConfigError


class Inner(Config):
    layers: int = 2
    width: int = 64


class Outer(Config):
    decoder: Inner = Inner()
    name: str = "x"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_file_and_overrides(tmp_path: Path) -> None:
    path = write(tmp_path / "c.yaml", "decoder: {layers: 3}\nname: small\n")
    config = load_config(Outer, path, ["decoder.width=128", "name=other"])
    assert config == Outer(decoder=Inner(layers=3, width=128), name="other")


def test_overrides_do_not_touch_the_input() -> None:
    data = {"decoder": {"layers": 1}}
    assert apply_overrides(data, ["decoder.layers=9"]) == {"decoder": {"layers": 9}}
    assert data == {"decoder": {"layers": 1}}


def test_unknown_key_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'decoder\.layer'; did you mean 'layers'"):
        parse_config(Outer, {"decoder": {"layer": 3}})


def test_a_key_in_the_wrong_place_is_told_the_right_one() -> None:
    class Nested(Config):
        outer: Outer | None = None
        several: tuple[Inner, ...] = ()

    with pytest.raises(ConfigError, match=r"unknown key 'width'; did you mean 'decoder\.width'"):
        parse_config(Outer, {"width": 3})
    with pytest.raises(ConfigError, match=r"'layers'; did you mean 'outer\.decoder\.layers'"):
        parse_config(Nested, {"layers": 3})
    with pytest.raises(ConfigError, match=r"'outer\.width'; did you mean 'outer\.decoder\.width'"):
        parse_config(Nested, {"outer": {"width": 3}})


def test_ill_typed_key_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'decoder\.layers'.*given 'many'"):
        parse_config(Outer, {"decoder": {"layers": "many"}})


@pytest.mark.parametrize("override", ["decoder.layers", "=3", "name.first=3"])
def test_bad_override(override: str) -> None:
    with pytest.raises(ConfigError):
        apply_overrides({"name": "x"}, [override])


@pytest.mark.parametrize("text", ["- a list", "a: [unclosed", "a: \t- b: c: d"])
def test_not_a_config(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        load_config(Outer, write(tmp_path / "c.yaml", text))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load_config(Outer, tmp_path / "none.yaml")


def test_dump_round_trip(tmp_path: Path) -> None:
    config = Outer(decoder=Inner(layers=5))
    assert load_config(Outer, write(tmp_path / "c.yaml", dump_yaml(config))) == config


MERGES = "a0: &a0 {k: 1, l: 2}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 12)
)
LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 20_000, "{a: " * 20_000, "1: 2", "{1: {2: 3}}", "? [a]\n: b", "a: " + "9" * 5000,
        "a: 2001-99-99", "&x {a: *x}", "&x [*x]", LAUGHS, "a: \x00", "a: !!python/none x",
        MERGES, "decoder: {layers: 0x" + "f" * 5000 + "}", "? 0x" + "f" * 5000 + "\n: 1",
        "a: 1" + ":1" * 5000, "a: 1" + ":1" * 5000 + ".5",
    ],
    ids=["deep list", "deep map", "integer key", "nested integer key", "list as key",
         "huge integer", "no such day", "map in itself", "list in itself", "a billion laughs",
         "NUL", "unknown tag", "merged maps", "huge hexadecimal integer", "huge integer as key",
         "huge integer to base 60", "huge number to base 60"],
)  # fmt: skip
def test_yaml_that_breaks_a_parser_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(Outer, path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_pipe_or_folder_is_no_config(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    for name in ("pipe.yaml", "folder.yaml"):
        with pytest.raises(ConfigError, match="cannot read"):
            load_config(Outer, tmp_path / name)


def test_keys_with_line_breaks_are_shown_in_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "c.yaml", '"a\\nb\\x1b[31m": 1\n')
    with pytest.raises(ConfigError, match=r"unknown key 'a\\nb\\x1b\[31m'"):
        load_config(Outer, path)
