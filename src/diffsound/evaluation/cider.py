"""CIDEr-D with the rarity of n-grams fixed in advance.

pycocoevalcap takes it from the references it is scoring, so that the score of a single sentence
is always 0 and nothing can be ranked by it. The formula is the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from diffsound.errors import InputError

N = 4  # the longest n-grams counted
SIGMA = 6.0  # of the penalty for sentences of another length

Ngram = tuple[str, ...]


class CiderD:
    """Scores sentences (words joined by spaces) against references.

    documents: the captions of each clip of a corpus; an n-gram said of many clips says little.
    """

    def __init__(self, documents: Iterable[Iterable[str]]) -> None:
        self._clips: Counter[Ngram] = Counter()
        count = 0
        for captions in documents:
            count += 1
            self._clips.update({ngram for caption in captions for ngram in _ngrams(caption)})
        if count < 2:
            raise InputError("CIDEr needs the captions of at least two clips to know what is rare")
        self._log_count = math.log(count)

    def score(self, sentence: str, references: Sequence[str]) -> float:
        """0 (nothing in common) to 10 (the only reference itself)."""
        if not references:
            raise InputError("CIDEr needs at least one reference")
        mine = self._weigh(sentence)
        total = 0.0
        for reference in references:
            theirs = self._weigh(reference)
            # The published code takes the number of bigrams for a sentence's length.
            apart = max(len(sentence.split()), 1) - max(len(reference.split()), 1)
            alike = sum(_cosine(mine[n], theirs[n]) for n in range(N)) / N
            total += alike * math.exp(-(apart**2) / (2 * SIGMA**2))
        return 10.0 * total / len(references)

    def _weigh(self, sentence: str) -> list[dict[Ngram, float]]:
        """TF-IDF of the sentence's n-grams, for every n."""
        weights: list[dict[Ngram, float]] = [{} for _ in range(N)]
        for ngram, times in _ngrams(sentence).items():
            rarity = self._log_count - math.log(max(1, self._clips[ngram]))
            weights[len(ngram) - 1][ngram] = times * rarity
        return weights


def _ngrams(sentence: str) -> Counter[Ngram]:
    words = sentence.split()
    return Counter(
        tuple(words[at : at + n]) for n in range(1, N + 1) for at in range(len(words) - n + 1)
    )


def _cosine(mine: dict[Ngram, float], theirs: dict[Ngram, float]) -> float:
    """Similarity in which saying an n-gram more often than the reference gains nothing."""
    norms = math.hypot(*mine.values()) * math.hypot(*theirs.values())
    if norms == 0:
        return 0.0
    shared = sum(min(weight, theirs.get(g, 0.0)) * theirs.get(g, 0.0) for g, weight in mine.items())
    return shared / norms
