"""`diffsound serve`: the HTTP server; `diffsound ui`: its web page, on this machine."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffsound.cli import options
from diffsound.config import parse_config
from diffsound.errors import ConfigError, InputError

if TYPE_CHECKING:
    from diffsound.serving.settings import ServerSettings

API_KEYS_VARIABLE = "DIFFSOUND_API_KEYS"

Bundles = Annotated[
    list[str] | None,
    typer.Option(
        "--bundle", "-b", metavar="<str>", help="Folder or hub id; repeat it to serve several."
    ),
]
Host = Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets others in.")]
Port = Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.")]


def command(
    bundle: Bundles = None,
    host: Host = "127.0.0.1",
    port: Port = 8765,
    device: options.Device = "cpu",
    lanes: Annotated[
        int | None, typer.Option(help="Batches made in parallel; one per core on a CPU.")
    ] = None,
    max_batch: Annotated[
        int, typer.Option(help="Largest number of sounds in one call of the model.")
    ] = 4,
    queue: Annotated[int, typer.Option(help="Number of requests that may wait.")] = 32,
    timeout: Annotated[float, typer.Option(help="Seconds a request may take.")] = 120.0,
    max_duration: Annotated[float, typer.Option(help="Longest sound, in seconds.")] = 30.0,
    max_candidates: Annotated[
        int, typer.Option(help="Largest number of sounds in one request.")
    ] = 8,
    max_work: Annotated[
        float,
        typer.Option(help="Most seconds of sound drawn for one request, over all its takes."),
    ] = 960.0,
    max_upload: Annotated[float, typer.Option(help="Largest upload, in MiB.")] = 20.0,
    max_connections: Annotated[int, typer.Option(help="Largest number of open connections.")] = 256,
    max_per_address: Annotated[
        int, typer.Option(help="Largest number of them from one address; raise it behind a proxy.")
    ] = 64,
    grace: Annotated[
        float, typer.Option(help="Seconds that running work gets to finish after SIGTERM.")
    ] = 60.0,
    api_keys_file: Annotated[
        Path | None,
        typer.Option(
            help="API keys, one a line with an optional name; read again when it changes "
            f"(or ${API_KEYS_VARIABLE})."
        ),
    ] = None,
    rate_limit: Annotated[
        float | None, typer.Option(help="Requests per minute for each key or address.")
    ] = None,
    quota: Annotated[
        float | None, typer.Option(help="Seconds of sound per day for each key or address.")
    ] = None,
    audit_log: Annotated[
        Path | None, typer.Option(help="File that gets a JSON line for every API request.")
    ] = None,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="A web origin that may use the API; repeatable.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A host name to answer to; repeatable.")
    ] = None,
    log_prompts: Annotated[
        bool, typer.Option("--log-prompts", help="Write prompts into the log.")
    ] = False,
    page: Annotated[bool, typer.Option(help="Also serve the web page.")] = True,
) -> None:
    """Serve sounds over HTTP; the API is described at /docs.

    \b
    Examples:
      diffsound serve
      diffsound serve --host 0.0.0.0 --port 80 --api-keys-file keys.txt
      curl -d '{"prompt": "a dog barks"}' -H 'Content-Type: application/json' \\
           http://127.0.0.1:8765/v1/generate -o dog.wav
    """
    from diffsound.serving.run import run
    from diffsound.serving.settings import MEBIBYTE

    settings = _settings(
        {
            "bundles": tuple(bundle or ()),
            "device": device,
            "host": host,
            "port": port,
            "lanes": lanes,
            "max_batch": max_batch,
            "limits": {
                "queue": queue,
                "timeout": timeout,
                "duration": max_duration,
                "candidates": max_candidates,
                "work": max_work,
                "upload_bytes": round(max_upload * MEBIBYTE),
                "connections": max_connections,
                "connections_per_address": max_per_address,
                "rate": rate_limit,
                "quota": quota,
            },
            "api_keys": keys_of_environment(),
            "api_keys_file": api_keys_file,
            "cors_origins": tuple(cors_origin or ()),
            "hosts": tuple(allow_host) if allow_host else None,
            "log_prompts": log_prompts,
            "audit_log": audit_log,
            "shutdown_timeout": grace,
            "web_page": page,
        }
    )
    # stderr is the log, which has the address too.
    run(settings, capture_stderr=True, on_ready=lambda url: typer.echo(f"serving on {url}"))


# The options that are not called as the settings they set.
_OPTIONS = {
    "limits.duration": "max-duration",
    "limits.candidates": "max-candidates",
    "limits.work": "max-work",
    "limits.upload_bytes": "max-upload",
    "limits.connections": "max-connections",
    "limits.connections_per_address": "max-per-address",
    "limits.rate": "rate-limit",
    "cors_origins": "cors-origin",
    "hosts": "allow-host",
    "shutdown_timeout": "grace",
}


def _settings(values: dict[str, Any]) -> ServerSettings:
    """The server's settings; a wrong one is called by its option."""
    from diffsound.serving.settings import ServerSettings

    try:
        return parse_config(ServerSettings, values, source="serve")
    except ConfigError as error:
        wrong = re.fullmatch(r"serve: '([a-z_.]+?)(?:\.\d+)?': input should be (.*)", str(error))
        if wrong is None:
            raise
        key, wanted = wrong.groups()
        option = _OPTIONS.get(key, key.removeprefix("limits.").replace("_", "-"))
        raise InputError(f"--{option} must be {wanted}") from None


def keys_of_environment() -> tuple[str, ...]:
    """The keys of the environment variable, comma-separated."""
    keys = os.environ.get(API_KEYS_VARIABLE, "").split(",")
    return tuple(key.strip() for key in keys if key.strip())


def ui(
    bundle: Bundles = None,
    host: Host = "127.0.0.1",
    port: Port = 8765,
    device: options.Device = "cpu",
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
) -> None:
    """Open the web page: type, press Enter, listen.

    \b
    Examples:
      diffsound ui
      diffsound ui --port 0 --no-browser
    """
    import logging

    from diffsound.serving.run import run

    def on_ready(url: str) -> None:
        typer.echo(f"open {url}  (Ctrl-C ends it)", err=True)
        if browser:
            import webbrowser

            webbrowser.open(url)

    settings = _settings(
        {"bundles": tuple(bundle or ()), "host": host, "port": port, "device": device}
    )
    # For one person at a page, only warnings and errors are worth a line.
    run(settings, extra="ui", log_level=logging.WARNING, on_ready=on_ready)
