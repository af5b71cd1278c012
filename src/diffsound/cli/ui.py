"""`diffsound ui`: the web page, on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from diffsound.cli.serve import Bundles, Device, Host, Port


def command(
    bundle: Bundles = None,
    host: Host = "127.0.0.1",
    port: Port = 8765,
    device: Device = "cpu",
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
) -> None:
    """Open the web page: type, press Enter, listen.

    \b
    Examples:
      diffsound ui
      diffsound ui --port 0 --no-browser
    """
    import logging

    from diffsound.config import parse_config
    from diffsound.serving.run import run
    from diffsound.serving.settings import ServerSettings

    def on_ready(url: str) -> None:
        typer.echo(f"open {url}  (Ctrl-C ends it)", err=True)
        if browser:
            import webbrowser

            webbrowser.open(url)

    values = {"bundles": tuple(bundle or ()), "host": host, "port": port, "device": device}
    settings = parse_config(ServerSettings, values, source="ui")
    # For one person at a page, only warnings and errors are worth a line.
    run(settings, extra="ui", log_level=logging.WARNING, on_ready=on_ready)
