"""Configuration: YAML files validated by pydantic models, with `key=value` overrides.

An unknown or ill-typed key is refused with the key's full path and the nearest valid name.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from diffsound.errors import ConfigError
from diffsound.files import read_text

_MAX_BYTES = 2**18  # the largest config here has 4 kB


class Config(BaseModel):
    """Base of every configuration: frozen, and closed to keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


# A config may come from a stranger, so every number of a network has a bound, far above any use:
# `tests/test_bounds.py` finds those that have none.
Width = Annotated[int, Field(ge=1, le=65_536)]  # channels, codes, columns
Count = Annotated[int, Field(ge=1, le=256)]  # layers, heads, rows, kernels
Weight = Annotated[float, Field(ge=0, le=1e6)]
MAX_LEVELS = 8
MAX_STRIDE = 4096  # frames or bands, all levels together

ConfigT = TypeVar("ConfigT", bound=BaseModel)


def load_config(model: type[ConfigT], path: str | Path, overrides: Iterable[str] = ()) -> ConfigT:
    """Read a YAML file, apply `a.b=value` overrides, validate."""
    path = Path(path)
    try:
        data = read_yaml(path) or {}
    except OSError as error:
        raise ConfigError(f"cannot read the config {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not valid YAML: {_one_line(error)}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold keys and values, not a {type(data).__name__}")
    return parse_config(model, apply_overrides(data, overrides), source=str(path))


def read_yaml(path: str | Path) -> Any:
    """The value in a YAML file; an OSError, or a ValueError for whatever is wrong with it."""
    return parse_yaml(read_text(path, limit=_MAX_BYTES))


class _PlainLoader(yaml.SafeLoader):
    """YAML without aliases: ten of ten of ten of something is gigabytes in a few lines."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("anchors and aliases are not supported; write the value out")
        return super().compose_node(parent, index)


def parse_yaml(text: str) -> Any:
    """A YAML value without aliases; whatever is wrong with it is a ValueError."""
    try:
        value = yaml.load(text, _PlainLoader)  # a SafeLoader: it makes plain values only
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (yaml.YAMLError, OverflowError) as error:
        raise ValueError(_one_line(error)) from error
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, int) and node.bit_length() > 64:  # Python would not even print it
            raise ValueError("a number in it is too large")
        if isinstance(node, dict):
            waiting += [*node, *node.values()]
        elif isinstance(node, list):
            waiting += node
    return value


def parse_config(model: type[ConfigT], data: Mapping[str, Any], source: str = "config") -> ConfigT:
    """Validate a mapping; the first problem becomes one line naming the key."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{source}: {_describe(error, model)}") from error


def apply_overrides(data: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return a copy of `data` with each `a.b.c=value` set; values are read as YAML."""
    result = _deep_copy(data)
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"an override is written key=value, not '{override}'")
        node = result
        *parents, last = key.strip().split(".")
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise ConfigError(f"'{parent}' in '{key}' is a value, not a group of keys")
        try:
            node[last] = parse_yaml(text)
        except ValueError as error:
            raise ConfigError(f"the value of '{key}' is not valid YAML: {text}") from error
    return result


def dump_yaml(config: BaseModel) -> str:
    """The config as YAML, keys in declaration order."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested groups as one level of dotted keys; tuples as lists, as they come back from a file."""
    values: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            values |= flat(value, f"{prefix}{key}.")
        else:
            values[prefix + key] = list(value) if isinstance(value, tuple) else value
    return values


def _deep_copy(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _deep_copy(value) if isinstance(value, Mapping) else value
        for key, value in data.items()
    }


def _describe(error: ValidationError, model: type[BaseModel]) -> str:
    problem = error.errors()[0]
    location = [shown(part) for part in problem["loc"]]
    path = ".".join(location)
    if problem["type"] == "extra_forbidden":
        keys = _all_keys(model)
        nearest = difflib.get_close_matches(location[-1], sorted(keys), n=1, cutoff=0.5)
        if not nearest:
            return f"unknown key '{path}'"
        # A key that exists is in the wrong place: say where it belongs.
        meant = keys[nearest[0]] if nearest[0] == location[-1] else nearest[0]
        return f"unknown key '{path}'; did you mean '{meant}'?"
    given = shown(repr(problem.get("input")))
    message = problem["msg"][:1].lower() + problem["msg"][1:]
    return f"'{path}': {message} (given {given})" if path else message


def shown(value: object, longest: int = 60) -> str:
    """A value from a stranger's file, fit for a message of one line."""
    text = str(value)
    text = text if text.isprintable() else repr(text)[1:-1]
    return text if len(text) <= longest else text[: longest - 3] + "..."


def _all_keys(model: type[BaseModel]) -> dict[str, str]:
    """Every key of the model, nested ones included, with the first place it has: "codec.rows"."""
    schema = TypeAdapter(model).json_schema()
    places: dict[str, str] = {}

    def walk(node: Any, group: str, above: tuple[str, ...]) -> None:
        if isinstance(node, list):
            for part in node:
                walk(part, group, above)
        if not isinstance(node, dict):
            return
        target = node.get("$ref", "")
        if target and target not in above:
            walk(schema["$defs"][target.rpartition("/")[2]], group, (*above, target))
        for name in node.get("properties", {}):
            places.setdefault(name, group + name)
        for name, part in node.get("properties", {}).items():
            walk(part, f"{group}{name}.", above)
        for name in ("anyOf", "oneOf", "allOf", "items", "prefixItems", "additionalProperties"):
            walk(node.get(name), group, above)

    walk(schema, "", ())
    return places


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
