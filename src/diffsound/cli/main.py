"""`diffsound`: the entry point, and what all verbs share.

`diffsound "a dog barks"` is short for `diffsound generate "a dog barks"`.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import NoReturn

import typer

from diffsound.errors import DiffsoundError

USER_ERROR = 2
INTERRUPTED = 130

# Verb -> module with either `command`, a function, or `app`, a group of commands. A module is
# imported only when its verb (or the list of verbs) is asked for.
COMMANDS = {
    "generate": "diffsound.cli.generate",
    "edit": "diffsound.cli.edit",
    "batch": "diffsound.cli.batch",
    "data": "diffsound.cli.data",
    "train": "diffsound.cli.train",
    "finetune": "diffsound.cli.finetune",
    "evaluate": "diffsound.cli.evaluate",
    "bundle": "diffsound.cli.bundle",
    "ui": "diffsound.cli.ui",
    "serve": "diffsound.cli.serve",
    "bench": "diffsound.cli.bench",
}

HELP = """Type a sentence, get the sound.

\b
Examples:
  diffsound "a dog barks in the distance"
  diffsound "rain on a tin roof" -o rain.flac --duration 8 --seed 7
  diffsound edit inpaint rain.flac "a thunder clap" --start 2 --end 4
  diffsound batch prompts.jsonl --out sounds

Exit codes: 0 done, 1 some rows of a batch failed, 2 something to put right, 130 interrupted.
"""


def build_app(verbs: list[str] | None = None) -> typer.Typer:
    """The command line with these verbs (all when None)."""
    app = typer.Typer(
        name="diffsound",
        help=HELP,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_main)
    for verb in verbs or COMMANDS:
        module = importlib.import_module(COMMANDS[verb])
        if hasattr(module, "command"):
            app.command(name=verb)(module.command)
        else:
            app.add_typer(module.app, name=verb)
    return app


def _show_version(asked: bool) -> None:
    if asked:
        from diffsound import __version__

        typer.echo(f"diffsound {__version__}")
        raise typer.Exit()


def _main(
    version: bool = typer.Option(
        False, "--version", help="Show the version.", is_eager=True, callback=_show_version
    ),
) -> None:
    pass


_main.__doc__ = HELP


def with_verb(arguments: list[str]) -> list[str]:
    """Put `generate` in front when the first word is a prompt rather than a verb."""
    if arguments and arguments[0] in ("--install-completion", "--show-completion"):
        return arguments  # they take a shell's name
    for position, argument in enumerate(arguments):
        if argument == "--":
            return [*arguments[:position], "generate", *arguments[position:]]
        if not argument.startswith("-"):
            is_verb = position == 0 and argument in COMMANDS
            return arguments if is_verb else ["generate", *arguments]
    # Options alone: the prompt comes through a pipe, unless they are the program's own.
    own = {"-h", "--help", "--version", "--install-completion", "--show-completion"}
    piped = not sys.stdin.isatty() and not own & set(arguments)
    return ["generate", *arguments] if piped else arguments


def run(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 done, 2 for what the user can put right, 130 for Ctrl-C."""
    try:
        arguments = with_verb(sys.argv[1:] if arguments is None else arguments)
        completing = "_DIFFSOUND_COMPLETE" in os.environ
        verb = arguments[0] if arguments else ""
        app = build_app([verb] if verb in COMMANDS and not completing else None)
        app(args=arguments, prog_name="diffsound", standalone_mode=True)
    except DiffsoundError as error:
        fail(str(error))
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)
    sys.exit(0)


def fail(message: str) -> NoReturn:
    """One line on stderr, exit code 2."""
    typer.echo(f"error: {' '.join(message.split())}", err=True)
    sys.exit(USER_ERROR)
