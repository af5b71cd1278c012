"""Words of a caption as the published caption metrics count them: Penn Treebank tokens, lower
case, punctuation left out.

The reference is Stanford's tokenizer, a Java program; `ptb_words` gives the same words for the
kind of text captions are, without Java.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from diffsound.errors import DiffsoundError, InputError, MissingExtraError

Tokenizer = Literal["auto", "java", "python"]

# What the published metrics leave out. Their list has "-LRB-" too, but the tokenizer writes
# "-lrb-": brackets count as words, and scores are comparable only if that slip is kept.
PUNCTUATION = frozenset(["''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"])
_BRACKETS = {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}
_SPELLED = str.maketrans({"’": "'", "‘": "`", "“": '"', "”": '"', "—": " -- ", "–": " -- "})
_TWO_WORDS = {
    "cannot": ("can", "not"),
    "gonna": ("gon", "na"),
    "gotta": ("got", "ta"),
    "wanna": ("wan", "na"),
    "gimme": ("gim", "me"),
    "lemme": ("lem", "me"),
}
_TOKEN = re.compile(
    r"""
      (?:[a-z]\.){2,}                                  # p.m.  u.s.a.
    | (?:mr|mrs|ms|dr|st|vs|etc|prof|jr|sr)\.(?=[\s,;:!?)]|$)
    | no\.(?=\s*\d)
    | <[a-z/][^<>\s]*>                                 # <noise>
    | \.?\d+(?:[.,:]\d+)*(?:[-/]?[^\W_]+)*             # 1,000  5:30  .22  9mm  12-inch
    | o'clock | ma'am
    | (?:[\#@](?=[a-z]))?[^\W_]+                       # dog's  tick-tock  and/or
      (?:(?:[&@/-]|\.(?!\d)|'(?=(?:s|t|m|d|re|ve|ll)\b))[^\W_]+)*
    | [?!]{2,}                                         # not in the list of punctuation either
    | [()\[\]{}%$&*+=/\\#@^|~<>]                       # each a token of its own
    """,
    re.VERBOSE,
)
_CLITIC = re.compile(r"(.+?)('(?:s|m|d|re|ve|ll))")
_NEGATED = re.compile(r"(.+)(n't)")


def ptb_words(text: str) -> list[str]:
    """The words of a caption: "A dog's bark isn't loud!" -> a dog 's bark is n't loud."""
    words: list[str] = []
    for token in _TOKEN.findall(text.translate(_SPELLED).lower()):
        split = _NEGATED.fullmatch(token) or _CLITIC.fullmatch(token)
        if split:
            words.extend(split.groups())
        else:
            words.extend(_TWO_WORDS.get(token, (_BRACKETS.get(token, token),)))
    return words


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
