"""The words of a caption, and their numbers for the captioner.

Words are those that the published caption metrics count: Penn Treebank tokens, lower case, without
punctuation. Their reference is Stanford's tokenizer, a Java program (`evaluation/ptb.py`);
`ptb_words` gives the same words for captions, without Java.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from diffsound.errors import DataError

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


PAD, START, END, UNKNOWN = range(4)
SPECIAL = 4  # the first number that is a word


class CaptionTokenizer:
    """The words of the training captions, numbered; every other word is UNKNOWN."""

    def __init__(self, words: Sequence[str]) -> None:
        if not words or len(set(words)) != len(words):
            raise DataError("a caption tokenizer needs words, each of them once")
        self.words = tuple(words)
        self._numbers = {word: SPECIAL + place for place, word in enumerate(self.words)}

    @classmethod
    def build(cls, captions: Iterable[str], min_count: int = 1) -> CaptionTokenizer:
        """The words said at least `min_count` times in `captions`, the commonest first."""
        counts = Counter(word for caption in captions for word in ptb_words(caption))
        common = [word for word, count in counts.items() if count >= min_count]
        return cls(sorted(common, key=lambda word: (-counts[word], word)))

    def __len__(self) -> int:
        """How many numbers there are, the special ones included."""
        return SPECIAL + len(self.words)

    def encode(self, caption: str) -> list[int]:
        """The numbers of a caption's words, without start and end."""
        return [self._numbers.get(word, UNKNOWN) for word in ptb_words(caption)]

    def batch(self, captions: Sequence[str], longest: int) -> Tensor:
        """Captions from START to END, padded: int64 [B, S]; of a longer one `longest` words."""
        rows = [[START, *self.encode(caption)[:longest], END] for caption in captions]
        width = max(map(len, rows))
        return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])

    def decode(self, numbers: Iterable[int]) -> str:
        """The words before the first END; special numbers are left out."""
        words: list[str] = []
        for number in numbers:
            if number == END:
                break
            if number >= SPECIAL:
                words.append(self.words[number - SPECIAL])
        return " ".join(words)

    def unknown(self, caption: str) -> list[str]:
        """The caption's words that are not among the known ones."""
        return [word for word in ptb_words(caption) if word not in self._numbers]
