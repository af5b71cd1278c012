"""HTML pages from the templates in `templates/`: values are escaped, and a policy is in the page.

A page is one file that loads nothing from elsewhere. Its content security policy names the hashes
of its own scripts and styles, so text that reaches the page as markup in spite of the escaping
still cannot run.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from diffsound.files import write_text

_TEMPLATES = "templates"


def render(
    template: str,
    *,
    styles: Sequence[str] = ("page.css",),
    scripts: Sequence[str] = (),
    allow: Mapping[str, str] | None = None,
    **values: Any,
) -> str:
    """The page a template makes of the values; the template extends `base.html`.

    styles, scripts: files of the templates folder, put into the page as they are.
    allow: further policy directives, e.g. {"connect-src": "'self'"} for a page with a server.
    """
    style, script = _joined(styles), _joined(scripts)
    policy = content_policy(script=script, style=style, allow=allow)
    return (
        _environment()
        .get_template(template)
        .render(policy=policy, style=Markup(style), script=Markup(script), **values)
    )


def content_policy(
    *, script: str = "", style: str = "", allow: Mapping[str, str] | None = None
) -> str:
    """A content security policy: this script, this style, media inside the page, nothing else."""
    directives = {
        "default-src": "'none'",
        "img-src": "data:",
        "media-src": "data:",
        "script-src": _hash_source(script),
        "style-src": _hash_source(style),
        "base-uri": "'none'",
        "form-action": "'none'",
    } | dict(allow or {})
    return "; ".join(f"{name} {source}" for name, source in directives.items())


def data_url(content: bytes, media_type: str) -> str:
    """The content itself as an address, for an image or a player inside the page."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode('ascii')}"


def write_page(path: str | Path, text: str) -> Path:
    """Write a page, whole or not at all."""
    write_text(path, text)
    return Path(path)


@functools.cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("diffsound", _TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@functools.cache
def _asset(name: str) -> str:
    return resources.files("diffsound").joinpath(_TEMPLATES, name).read_text(encoding="utf-8")


def _joined(names: Sequence[str]) -> str:
    return "".join(_asset(name) for name in names)


def _hash_source(text: str) -> str:
    if not text:
        return "'none'"
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
