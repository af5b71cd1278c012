"""What a model knows of a prompt: how near it is to the captions the model was trained on.

A model answers every prompt, also those about things it never heard. A bundle may carry a choice
of its training captions with their text vectors; a prompt's nearest ones say what the answer can
be made of.

    coverage.safetensors   vectors [N, D], float16, of length 1
    coverage.json          {"captions": [N texts]}
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from diffsound.errors import BundleError
from diffsound.files import atomic_write, read_json
from diffsound.weights import load_weights, save_weights

VECTORS_FILE = "coverage.safetensors"
CAPTIONS_FILE = "coverage.json"
COVERAGE_FILES = (VECTORS_FILE, CAPTIONS_FILE)

Verdict = Literal["known", "similar", "far"]

# Captions kept: 1 MB of MiniLM's 384 numbers.
MOST_CAPTIONS = 1250
NEAREST = 3

# Cosines of MiniLM's vectors, chosen on the bundled model's corpus (6 147 training captions, 1 250
# kept). KNOWN: every training caption has a kept one at least so near, and so do 91 % of the
# validation captions. FAR: below it are 0.3 % of the validation captions, a tenth of the AudioCaps
# test captions (much of it talk and music, which the corpus lacks), and all of 21 sentences about
# things without a sound or sounds that are not in the corpus, from "quantum entanglement" (.26) to
# "electric guitar solo" (.499).
KNOWN = 0.70
FAR = 0.50


@dataclass(frozen=True)
class Coverage:
    """Captions the model was trained on. vectors: [N, D], of length 1."""

    captions: tuple[str, ...]
    vectors: Tensor

    @classmethod
    def choose(cls, captions: Sequence[str], pooled: Tensor, most: int = MOST_CAPTIONS) -> Coverage:
        """At most `most` of the captions (pooled: [N, D]), such that none is far from a kept one.

        Each next one is the caption farthest from those kept so far; the first is the one nearest
        to their mean. The order of equally far captions decides, so the choice is reproducible.
        """
        vectors = normalize(pooled.float(), dim=-1)
        kept = [int((vectors @ vectors.mean(0)).argmax())]
        nearest = vectors @ vectors[kept[0]]
        while len(kept) < min(most, len(captions)):
            kept.append(int(nearest.argmin()))
            nearest = torch.maximum(nearest, vectors @ vectors[kept[-1]])
        kept.sort()
        return cls(tuple(captions[i] for i in kept), vectors[kept].half().float())

    @classmethod
    def load(cls, folder: Path) -> Coverage:
        """Read a bundle's coverage files."""
        path = folder / CAPTIONS_FILE
        try:
            captions = read_json(path)["captions"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BundleError(f"{path} is missing or damaged: {error}") from error
        vectors = load_weights(folder / VECTORS_FILE).get("vectors")
        if vectors is None or vectors.ndim != 2 or not 0 < len(vectors) == len(captions):
            raise BundleError(f"{folder / VECTORS_FILE} does not fit the captions beside it")
        return cls(tuple(captions), vectors)

    def save(self, folder: Path) -> None:
        """Write the coverage files into a bundle's folder."""
        save_weights(folder / VECTORS_FILE, {"vectors": self.vectors}, torch.float16)
        with atomic_write(folder / CAPTIONS_FILE) as temporary:
            text = json.dumps({"captions": self.captions}, ensure_ascii=False, indent=0)
            temporary.write_text(text + "\n", encoding="utf-8")

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
