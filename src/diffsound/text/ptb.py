"""Words of a caption as the published caption metrics count them: Penn Treebank tokens, lower
case, punctuation left out.

The reference is Stanford's tokenizer, a Java program; `ptb_words` gives the same words for the kind
of text captions are, without Java.
"""

from __future__ import annotations

import re

# The published metrics leave out punctuation. Their list has "-LRB-" too, but the tokenizer writes
# "-lrb-": brackets count as words, and scores are comparable only if that slip is kept.
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
