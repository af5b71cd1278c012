"""One model of every setting: what derives from it, and what it refuses."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args, get_type_hints

import pytest
from pydantic import ValidationError

from cli_support import option_names
from diffsound.batch.rows import BatchRow
from diffsound.decoder import SamplingSettings
from diffsound.errors import InputError
from diffsound.generation.settings import (
    OUTPUT,
    SETTINGS,
    TAKES,
    GenerationDefaults,
    GenerationSettings,
    GivenSettings,
    KeepSettings,
    TakeSettings,
    check,
    complete,
    limits,
    short_name,
)
from diffsound.serving.schemas import Drawing, GenerateNow

ALL = SETTINGS | TAKES | OUTPUT
NAMES = list(ALL)


def test_the_keywords_of_a_call_are_the_settings() -> None:
    """What an editor completes is what is checked, with the same types."""
    keywords = get_type_hints(GivenSettings)
    assert keywords.keys() == SETTINGS.keys()
    for name, field in SETTINGS.items():
        plain = field.annotation if name != "duration" else field.annotation | Literal["auto"]
        assert keywords[name] == plain, name


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_is_described_and_bounded(name: str) -> None:
    field = ALL[name]
    assert field.description
    assert field.description.endswith(".")
    kinds = {*get_args(field.annotation), field.annotation} & {int, float}
    assert not kinds or len(limits(field)) == 2, "a number has a lower and an upper bound"


def test_every_surface_offers_every_setting() -> None:
    short = {short_name(name) for name in NAMES}
    assert set(BatchRow.model_fields) == {"prompt", "name", "folder"} | short
    assert set(GenerateNow.model_fields) >= set(NAMES)
    assert set(Drawing.model_fields) >= {*SETTINGS, *TAKES} - {"duration", "keep", "variations"}
    assert set(GenerationDefaults.model_fields) == {*SETTINGS, "backend"}
    flags = {name.replace("_", "-") for name in short}
    assert option_names("generate") >= flags
    assert option_names("batch") >= flags - {"seed"}


@pytest.mark.parametrize("name", [name for name in NAMES if limits(ALL[name])])
def test_bounds_are_the_same_everywhere(name: str) -> None:
    wanted = limits(ALL[name])
    assert limits(GenerateNow.model_fields[name]) == wanted
    assert limits(BatchRow.model_fields[short_name(name)]) == wanted


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sampler": "plms"}, "sampler must be one of ancestral, confidence, official, not 'plms'"),
        ({"num_inference_steps": 0}, "num_inference_steps must be a whole number from 1 to 10000"),
        ({"num_inference_steps": 1.5}, "num_inference_steps must be a whole number"),
        ({"stride": 0}, "stride must be a whole number from 1"),
        ({"guidance_scale": -1.0}, "guidance_scale must be a number from 0 to 100, not -1.0"),
        ({"guidance_scale": math.nan}, "guidance_scale must be a number from 0 to 100, not nan"),
        ({"temperature": -0.1}, "temperature must be a number from 0"),
        ({"truncation": 0.0}, "truncation must be a number above 0 and at most 1, not 0.0"),
        ({"truncation": 1.1}, "truncation"),
        ({"top_k": 0}, "top_k must be a whole number from 1 to 1000000"),
        ({"remask": 1.0}, "remask must be a number from 0 to below 1"),
        ({"duration": 31}, "duration must be a number from 0.5 to 30, not 31"),
        ({"duration": "5"}, "duration must be a number"),
        ({"best_of": True}, "best_of must be a whole number from 1 to 100, not True"),
        ({"layered": 1}, "layered must be true or false, not 1"),
        ({"level": 3.0}, "level must be a number from -60 to 0"),
        ({"negative_prompt": "x" * 2001}, "negative_prompt must be a text of at most 2000"),
        ({"magic": 1}, "unknown setting 'magic'; there are: sampler, "),
    ],
)
def test_a_wrong_value_is_refused_in_one_line(values: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        complete(GenerationSettings(), values)
    assert "\n" not in str(caught.value)


def test_given_settings_replace_the_defaults() -> None:
    defaults = GenerationDefaults(level=-20.0, num_inference_steps=10, duration=3.0)
    assert complete(defaults, {}).num_inference_steps == 10
    assert complete(defaults, {"level": None}).level is None, "None is a value of this setting"
    assert complete(defaults, {"temperature": None}).temperature == 1.0, "of this one it is not"
    for auto in (None, "auto"):
        assert complete(defaults, {"duration": auto}).duration is None
    assert complete(defaults, {"duration": 4}).duration == 4.0
    strided = complete(defaults, {"stride": 2})
    assert (strided.stride, strided.num_inference_steps) == (2, None)


def test_fast_means_one_take_and_few_steps_unless_they_are_given() -> None:
    defaults = GenerationDefaults(num_inference_steps=14, best_of=3)
    fast = complete(defaults, {"fast": True})
    assert (fast.best_of, fast.num_inference_steps) == (1, 10)
    assert complete(defaults, {"fast": False}).best_of == 3
    given = complete(defaults, {"fast": True, "best_of": 2, "stride": 5})
    assert (given.best_of, given.num_inference_steps, given.stride) == (2, None, 5)
    few = GenerationDefaults(num_inference_steps=4)
    assert complete(few, {"fast": True}).num_inference_steps == 4


def test_keep_is_at_most_the_number_of_candidates() -> None:
    assert check(KeepSettings, {"num_candidates": 3, "keep": 3}).keep == 3
    with pytest.raises(InputError, match="keep must be at most num_candidates, 2"):
        check(KeepSettings, {"num_candidates": 2, "keep": 3})
    with pytest.raises(InputError, match="seed must be a whole number from 0 to 92233720368547758"):
        check(TakeSettings, {"seed": -1})


def test_settings_built_directly_are_checked() -> None:
    with pytest.raises(ValidationError, match="top_k"):
        SamplingSettings(top_k=0)
