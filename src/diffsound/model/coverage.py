"""What a model knows of a prompt: how near it is to the captions the model was trained on.

A model answers every prompt, also those about things it never heard. A bundle may carry a choice
of its training captions with their text vectors; a prompt's nearest ones say what the answer can
be made of, and how long such a sound is.

    coverage.safetensors   vectors [N, D], float16, of length 1; lengths [N, 4], if they are known
    coverage.json          {"captions": [N texts]}
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from diffsound.audio.mixing import Extent
from diffsound.errors import BundleError
from diffsound.files import read_json, write_text
from diffsound.weights import load_weights, save_weights

VECTORS_FILE = "coverage.safetensors"
CAPTIONS_FILE = "coverage.json"
COVERAGE_FILES = (VECTORS_FILE, CAPTIONS_FILE)

Verdict = Literal["known", "similar", "far"]

# Captions kept: 1 MB of MiniLM's 384 numbers.
MOST_CAPTIONS = 1250
NEAREST = 3

# Cosines of MiniLM's vectors, chosen on the bundled model's corpus (6 147 training captions, 1 250
# kept). KNOWN: every training caption is at least this near to a kept one, and so are 91 % of the
# validation captions. FAR: below it are 0.3 % of the validation captions, a tenth of the AudioCaps
# test captions (much of it talk and music, which the corpus lacks), and all of 21 sentences about
# things without a sound or sounds that are not in the corpus, from "quantum entanglement" (.26) to
# "electric guitar solo" (.499).
KNOWN = 0.70
FAR = 0.50

# Captions that vote on a length, and how fast a vote loses weight with distance.
VOTERS, VOTE_TEMPERATURE = 8, 0.05
MOST_SINGLE = 0.4  # share of single events among the voters from which a sound is one
LENGTHS = ("seconds", "goes_on", "single", "events")  # columns of `Coverage.lengths`


@dataclass(frozen=True)
class NaturalLength:
    """How long a sound is by itself, from the training clips with the nearest captions.

    seconds: of the whole sound. events: their usual number. single: it is one event, such as a
    shot. goes_on: it has no end of its own, as rain has none.
    """

    seconds: float
    events: float
    single: bool
    goes_on: bool


@dataclass(frozen=True)
class Coverage:
    """Captions the model was trained on. vectors: [N, D], of length 1.

    lengths: [N, 4], of the clips each caption stands for: median of their seconds, share that goes
    on, share of single events, median number of events. Zeros where unknown, None if all are.
    """

    captions: tuple[str, ...]
    vectors: Tensor
    lengths: Tensor | None = None

    @classmethod
    def choose(
        cls,
        captions: Sequence[str],
        pooled: Tensor,
        most: int = MOST_CAPTIONS,
        lengths: Tensor | None = None,
    ) -> Coverage:
        """At most `most` of the captions (pooled: [N, D]), such that none is far from a kept one.

        Each next one is the caption farthest from those kept so far; the first is the one nearest
        to their mean. The order of equally far captions decides, so the choice is reproducible.
        lengths: [N, 4], of each caption's clips; a kept one stands for all that are nearest to it.
        """
        vectors = normalize(pooled.float(), dim=-1)
        kept = [int((vectors @ vectors.mean(0)).argmax())]
        nearest = vectors @ vectors[kept[0]]
        while len(kept) < min(most, len(captions)):
            kept.append(int(nearest.argmin()))
            nearest = torch.maximum(nearest, vectors @ vectors[kept[-1]])
        kept.sort()
        if lengths is not None:
            group = (vectors @ vectors[kept].T).argmax(1)
            members = [lengths[group == number] for number in range(len(kept))]
            lengths = torch.stack([_joined(rows) for rows in members]).half().float()
        return cls(tuple(captions[i] for i in kept), vectors[kept].half().float(), lengths)

    @classmethod
    def load(cls, folder: Path) -> Coverage:
        """Read a bundle's coverage files."""
        path = folder / CAPTIONS_FILE
        try:
            captions = read_json(path)["captions"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BundleError(f"{path} is missing or damaged: {error}") from error
        tensors = load_weights(folder / VECTORS_FILE)
        vectors, lengths = tensors.get("vectors"), tensors.get("lengths")
        if vectors is None or vectors.ndim != 2 or not 0 < len(vectors) == len(captions):
            raise BundleError(f"{folder / VECTORS_FILE} does not fit the captions beside it")
        if lengths is not None and lengths.shape != (len(captions), len(LENGTHS)):
            raise BundleError(f"{folder / VECTORS_FILE} has lengths that do not fit its captions")
        return cls(tuple(captions), vectors, lengths)

    def save(self, folder: Path) -> None:
        """Write the coverage files into a bundle's folder."""
        tensors = {"vectors": self.vectors}
        if self.lengths is not None:
            tensors["lengths"] = self.lengths
        save_weights(folder / VECTORS_FILE, tensors, torch.float16)
        text = json.dumps({"captions": self.captions}, ensure_ascii=False, indent=0)
        write_text(folder / CAPTIONS_FILE, text + "\n")

    def of(self, pooled: Tensor) -> list[dict[str, Any]]:
        """What is known of each text, from their vectors [B, D], ready for JSON.

        similarity: cosine to the nearest caption; verdict: known, similar or far; nearest: the
        three nearest captions with theirs; note: the same in a few words.
        """
        similarity = normalize(pooled.float().cpu(), dim=-1) @ self.vectors.T
        best = similarity.topk(min(NEAREST, len(self.captions)), dim=1)
        return [
            _told(values, [self.captions[place] for place in places])
            for values, places in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]

    def natural(self, pooled: Tensor) -> list[NaturalLength | None]:
        """How long the sound of each text is, from their vectors [B, D]; None if unknown.

        The nearest captions vote with weights that fall with distance; medians decide.
        """
        if self.lengths is None:
            return [None] * len(pooled)
        similarity = normalize(pooled.float().cpu(), dim=-1) @ self.vectors.T
        best = similarity.topk(min(VOTERS, len(self.captions)), dim=1)
        weights = (best.values / VOTE_TEMPERATURE).softmax(dim=1)
        return [
            _vote(self.lengths[places], weight) if float(values[0]) >= FAR else None
            for values, places, weight in zip(best.values, best.indices, weights, strict=True)
        ]


def length_row(clips: Sequence[Extent]) -> Tensor:
    """The row of `Coverage.lengths` of a caption that these clips have."""
    count = len(clips)
    return torch.tensor(
        [
            median(one.seconds for one in clips),
            sum(one.goes_on for one in clips) / count,
            sum(one.events == 1 and not one.goes_on for one in clips) / count,
            median(one.events for one in clips),
        ]
    )


def _joined(rows: Tensor) -> Tensor:
    """One row [4] for several captions [N, 4]; those of unknown length do not count."""
    rows = rows[rows[:, 0] > 0]
    if not len(rows):
        return torch.zeros(len(LENGTHS))
    seconds, goes_on, single, events = rows.unbind(1)
    return torch.stack([seconds.median(), goes_on.mean(), single.mean(), events.median()])


def _vote(lengths: Tensor, weights: Tensor) -> NaturalLength | None:
    """lengths [V, 4] and weights [V] of the voters; those of unknown length have no vote."""
    known = lengths[:, 0] > 0
    lengths, weights = lengths[known], weights[known]
    if not len(lengths):
        return None
    seconds, goes_on, single, events = lengths.unbind(1)
    share = weights / weights.sum()
    return NaturalLength(
        seconds=_weighted_median(seconds, share),
        events=_weighted_median(events, share),
        single=bool((single * share).sum() >= MOST_SINGLE),
        goes_on=bool((goes_on * share).sum() >= 0.5),
    )


def _weighted_median(values: Tensor, share: Tensor) -> float:
    order = values.argsort()
    # A hair below a half, so that rounding cannot push the middle one out.
    at = int((share[order].cumsum(0) < 0.5 - 1e-6).sum())
    return float(values[order[at]])


def _told(similarities: list[float], captions: list[str]) -> dict[str, Any]:
    verdict = _verdict(similarities[0])
    quoted = [f"“{caption}”" for caption in captions]
    notes: dict[Verdict, str] = {
        "known": f"well known: {quoted[0]}",
        "similar": f"similar to {quoted[0]}",
        "far": f"far from anything it has heard; nearest: {', '.join(quoted)}",
    }
    return {
        "similarity": round(similarities[0], 3),
        "verdict": verdict,
        "nearest": [
            {"caption": caption, "similarity": round(value, 3)}
            for caption, value in zip(captions, similarities, strict=True)
        ],
        "note": notes[verdict],
    }


def _verdict(similarity: float) -> Verdict:
    if similarity >= KNOWN:
        return "known"
    return "similar" if similarity >= FAR else "far"
