"""Captions tokenised for the published metrics: by Stanford's Java program if it is installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from diffsound.errors import DiffsoundError, InputError, MissingExtraError
from diffsound.judges.caption_tokenizer import PUNCTUATION, ptb_words

Tokenizer = Literal["auto", "java", "python"]


def java() -> str | None:
    """The Java program, if this machine has one."""
    return shutil.which("java")


def tokenize_captions(captions: Sequence[str], tokenizer: Tokenizer = "auto") -> list[str]:
    """Each caption as its words joined by spaces, as the scorers of pycocoevalcap take them.

    tokenizer: "java" is the reference, "python" ours, "auto" the reference where there is Java.
    """
    if tokenizer == "python" or (tokenizer == "auto" and java() is None):
        return [" ".join(ptb_words(caption)) for caption in captions]
    return _stanford(captions)


def coco_folder() -> Path:
    """Where pycocoevalcap and its jars are installed."""
    try:
        import pycocoevalcap
    except ModuleNotFoundError:
        raise MissingExtraError("pycocoevalcap", "eval") from None
    return Path(next(iter(pycocoevalcap.__path__)))


def _stanford(captions: Sequence[str]) -> list[str]:
    # pycocoevalcap's own wrapper writes into its installation folder, which may be read-only, and
    # loses its place when a caption has a line break; the jar reads standard input as well.
    program = java()
    if program is None:
        raise InputError("the Java tokenizer needs Java; install it or use tokenizer='python'")
    jar = coco_folder() / "tokenizer" / "stanford-corenlp-3.4.1.jar"
    command = [program, "-XX:TieredStopAtLevel=1", "-cp", str(jar)]
    command += ["edu.stanford.nlp.process.PTBTokenizer", "-preserveLines", "-lowerCase"]
    lines = "".join(" ".join(caption.split()) + "\n" for caption in captions)
    done = subprocess.run(
        [*command, "-encoding", "utf-8"], input=lines.encode(), capture_output=True, check=False
    )
    found = done.stdout.decode("utf-8", "replace").split("\n")
    if done.returncode or len(found) <= len(captions):
        problem = " ".join(done.stderr.decode("utf-8", "replace").split())[-200:]
        raise DiffsoundError(f"the Java tokenizer failed: {problem}; use tokenizer='python'")
    return [
        " ".join(word for word in line.split() if word not in PUNCTUATION)
        for line in found[: len(captions)]
    ]
