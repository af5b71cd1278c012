"""Words to numbers and back, for the captioner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from diffsound.errors import DataError
from diffsound.text.ptb import ptb_words

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
