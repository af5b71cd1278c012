"""`diffsound`: the entry point, and what all verbs share.

`diffsound "a dog barks"` is short for `diffsound generate "a dog barks"`.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import os
import re
import shlex
import sys
from typing import Any, NoReturn

import typer

from diffsound.errors import DiffsoundError, InputError

USER_ERROR = 2
FAILING_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
INTERRUPTED = 130
# What is wrong with the words of a command; not exported by every version of Typer.
UsageError: Any = typer.BadParameter.__base__

# What each verb does, as the list of verbs shows it. A verb's module, cli/VERB.py, has
# either `command`, a function, or `app`, a group of commands; it is imported when the verb is used.
# A verb of SHARED is a function of its own name in another verb's module.
COMMANDS = {
    "generate": "Make a sound from a sentence.",
    "edit": "Change a clip: inpaint, extend or vary it.",
    "remake": "Make a sound again from its file, as it is or with changes.",
    "info": "Show what a file was made from.",
    "batch": "Make many sounds from a file of prompts.",
    "data": "Prepare, tokenize and inspect sounds for training.",
    "train": "Train a stage of the model.",
    "finetune": "Teach a model your own sounds.",
    "evaluate": "Measure a model: metrics, recognition, tables, listening test.",
    "bundle": "Build, inspect, verify and import models.",
    "ui": "Open the web page: type, press Enter, listen.",
    "serve": "Serve sounds over HTTP; the API is described at /docs.",
    "bench": "Time every stage of a generation on this machine.",
}

SHARED = {"bench": "bundle", "finetune": "train", "info": "remake", "ui": "serve"}

HELP = """Type a sentence, get the sound.

\b
Examples:
  diffsound "a dog barks in the distance"
  diffsound "rain on a tin roof" -o rain.flac --duration 8 --seed 7
  diffsound edit inpaint rain.flac "a dog barks" --start 2 --end 4
  diffsound batch prompts.jsonl --out sounds

Exit codes: 0 success, 1 some rows of a batch failed, 2 an error you can fix, 130 interrupted.
"""


# Words that people try, and the commands they mean.
LIKELY_VERBS = {
    "play": 'diffsound "a dog barks" --play',
    "make": 'diffsound "a dog barks"',
    "create": 'diffsound "a dog barks"',
    "gen": 'diffsound "a dog barks"',
    "help": "diffsound --help",
    "version": "diffsound --version",
    "models": "diffsound bundle inspect",
    "model": "diffsound bundle inspect",
    "list": "diffsound bundle inspect",
    "inspect": "diffsound info FILE",
    "show": "diffsound info FILE",
    "again": "diffsound remake FILE",
    "redo": "diffsound remake FILE",
    "verify": "diffsound bundle verify FOLDER",
    "import": "diffsound bundle import",
    "export": "diffsound bundle export",
    "inpaint": "diffsound edit inpaint FILE",
    "extend": "diffsound edit extend FILE",
    "vary": "diffsound edit vary FILE",
    "prepare": "diffsound data prepare",
    "tokenize": "diffsound data tokenize",
    "eval": "diffsound evaluate",
    "benchmark": "diffsound bench",
    "web": "diffsound ui",
    "gui": "diffsound ui",
    "server": "diffsound serve",
    "api": "diffsound serve",
}
# Corrected when misspelt. Other verbs are not: "trains" may well be a prompt.
_PLAIN_VERBS = ("generate", "finetune", "evaluate", "bundle", "remake")


def build_app(verbs: list[str] | None = None, *, listed: bool = False) -> typer.Typer:
    """The command line with these verbs (all when None); listed: only their names and summaries."""
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
        if listed:
            app.command(name=verb, help=COMMANDS[verb])(lambda: None)
            continue
        module = importlib.import_module(f"diffsound.cli.{SHARED.get(verb, verb)}")
        if verb in SHARED:
            app.command(name=verb)(getattr(module, verb))
        elif hasattr(module, "command"):
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
            if position == 0:
                _check_verb(argument, arguments)
            is_verb = position == 0 and argument in COMMANDS
            return arguments if is_verb else ["generate", *arguments]
    # Options alone: the prompt comes through a pipe, unless they are the program's own.
    own = {"-h", "--help", "--version", "--install-completion", "--show-completion"}
    piped = not sys.stdin.isatty() and not own & set(arguments)
    return ["generate", *arguments] if piped else arguments


def _is_swapped(word: str, verb: str) -> bool:
    """Whether two neighbouring letters of a verb changed places: "bundel"."""
    places = range(len(verb) - 1)
    return any(word == verb[:i] + verb[i + 1] + verb[i] + verb[i + 2 :] for i in places)


def _check_verb(word: str, arguments: list[str]) -> None:
    """Refuse a first word that looks like a verb but is none; it would be read as a prompt."""
    meant = LIKELY_VERBS.get(word)
    if meant is None and word not in COMMANDS:
        swapped = [verb for verb in COMMANDS if _is_swapped(word, verb)]
        close = swapped or difflib.get_close_matches(word.lower(), _PLAIN_VERBS, 1, cutoff=0.85)
        meant = f"diffsound {close[0]}" if close else None
    if meant is not None:
        raise InputError(
            f"'{word}' is not a command; did you mean: {meant} "
            f"(to hear it: diffsound generate {shlex.join(arguments)})"
        )


def run(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 success, 2 an error the user can fix, 130 Ctrl-C."""
    try:
        arguments = with_verb(sys.argv[1:] if arguments is None else arguments)
        completing = "_DIFFSOUND_COMPLETE" in os.environ
        verb = arguments[0] if arguments else ""
        if completing:
            app = build_app()
        else:
            app = build_app([verb]) if verb in COMMANDS else build_app(listed=True)
        sys.exit(app(args=arguments, prog_name="diffsound", standalone_mode=False) or 0)
    except UsageError as error:
        _fail_usage(error)
    except InputError as error:
        from diffsound.cli.options import in_options

        fail(in_options(str(error)))
    except DiffsoundError as error:
        fail(str(error))
    except OSError as error:
        if error.errno not in FAILING_DISK:
            raise
        fail(f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror))
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)


def _fail_usage(error: Any) -> NoReturn:
    """What Typer says in four lines, in one; a group without its verb shows the list of them."""
    message = str(error.format_message())
    if error.ctx is not None and message == error.ctx.get_help():
        typer.echo(message, err=True)
        sys.exit(USER_ERROR)
    option = getattr(error, "option_name", None)
    if option is not None and message.startswith("No such option"):
        close = difflib.get_close_matches(option, error.possibilities or [], n=1, cutoff=0)
        message = f"there is no option {option}" + (f"; did you mean {close[0]}?" if close else "")
    # "Invalid value for '--candidates' / '-n': Input should be a valid integer, unable to …"
    message = re.sub(r"^Invalid value for '([^']*)'[^:]*: (Value error, )?", r"\1: ", message)
    message = re.sub(r": Input should be a valid (\w+).*", r" must be a \1", message)
    message = message.replace("must be a integer", "must be a whole number")
    message = message[0].lower() + message[1:].rstrip(".")
    command = "diffsound" if error.ctx is None else error.ctx.command_path
    fail(f"{message} (help: {command} -h)")


def fail(message: str) -> NoReturn:
    """One line on stderr, exit code 2."""
    typer.echo(f"error: {' '.join(message.split())}", err=True)
    sys.exit(USER_ERROR)
