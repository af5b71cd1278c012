"""Scores of captions against references: CIDEr-D, BLEU, ROUGE-L and METEOR as published, SPICE
where it can run, and a scene-graph score of our own that needs nothing.

    report = caption_scores(["a dog barks"], [["a dog is barking", "barking"]])
    report["cider"].value, report["spice"].reason

A metric that cannot run says why; it is never a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from diffsound.errors import DiffsoundError, InputError
from diffsound.evaluation import spice
from diffsound.evaluation.ptb import Tokenizer, coco_folder, java, tokenize_captions
from diffsound.evaluation.scene_graph import scene_graph_score

METRICS = (
    *("bleu_1", "bleu_2", "bleu_3", "bleu_4", "rouge_l"),
    *("cider", "meteor", "spice", "scene_graph"),
)


@dataclass(frozen=True)
class Score:
    """A metric over a set of captions.

    value:  of the whole set; None when the metric is not available.
    each:   of every caption, in order.
    reason: why it is not available.
    """

    value: float | None
    each: tuple[float, ...] = ()
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.value:.4f}" if self.value is not None else f"not available: {self.reason}"


def caption_scores(
    candidates: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    metrics: Sequence[str] = METRICS,
    tokenizer: Tokenizer = "auto",
    corenlp: str | Path | None = None,
) -> dict[str, Score]:
    """Score each candidate against its references, for every metric asked for.

    corenlp: folder with the jars that SPICE needs (by default that of DIFFSOUND_CORENLP).
    """
    _check(candidates, references, metrics)
    wanted = set(metrics)
    folder = spice.corenlp_folder(corenlp) if "spice" in wanted else None
    scores: dict[str, Score] = {}
    if wanted - {"spice", "scene_graph"}:
        coco_folder()
        said, truth = _tokenized(candidates, references, tokenizer)
        for name, scorer in _scorers(wanted).items():
            scores |= _run(name, scorer, truth, said)
        if "meteor" in wanted:
            scores["meteor"] = _meteor(truth, said)
    if "spice" in wanted:
        reason = spice.missing_reason(folder)
        if reason is None and folder is not None:
            scores["spice"] = _mean(spice.spice_scores(candidates, references, folder))
        else:
            scores["spice"] = Score(None, reason=reason or "")
    if "scene_graph" in wanted:
        pairs = zip(candidates, references, strict=True)
        scores["scene_graph"] = _mean([scene_graph_score(said, truth) for said, truth in pairs])
    return {name: scores[name] for name in METRICS if name in wanted}


def to_json(scores: Mapping[str, Score]) -> dict[str, Any]:
    """The values for a report; what is not available is said in words."""
    return {
        name: score.value if score.value is not None else str(score)
        for name, score in scores.items()
    }


Captions = dict[int, list[str]]


def _check(
    candidates: Sequence[str], references: Sequence[Sequence[str]], metrics: Sequence[str]
) -> None:
    unknown = [name for name in metrics if name not in METRICS]
    if unknown:
        raise InputError(f"there is no caption metric '{unknown[0]}'; choose of {METRICS}")
    if not candidates:
        raise InputError("there is no caption to score")
    if len(candidates) != len(references):
        raise InputError(
            f"{len(candidates)} captions need as many lists of references, not {len(references)}"
        )
    for number, truth in enumerate(references):
        if isinstance(truth, str) or not any(reference.strip() for reference in truth):
            raise InputError(f"caption {number} has no reference (a list of sentences) beside it")


def _tokenized(
    candidates: Sequence[str], references: Sequence[Sequence[str]], tokenizer: Tokenizer
) -> tuple[Captions, Captions]:
    """As pycocoevalcap takes them, all in one go because starting Java takes a second."""
    flat = [*candidates, *(reference for truth in references for reference in truth)]
    words = iter(tokenize_captions(flat, tokenizer))
    said = {number: [next(words)] for number in range(len(candidates))}
    truth = {number: [next(words) for _ in found] for number, found in enumerate(references)}
    return said, truth


def _scorers(wanted: set[str]) -> dict[str, Any]:
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    scorers = {"bleu": Bleu(4), "rouge_l": Rouge(), "cider": Cider()}
    return {name: s for name, s in scorers.items() if any(m.startswith(name) for m in wanted)}


def _run(name: str, scorer: Any, truth: Captions, said: Captions) -> dict[str, Score]:
    if name == "cider" and len(said) < 2:
        reason = "CIDEr weighs words by their rarity among the clips; give two clips or more"
        return {name: Score(None, reason=reason)}
    compute: Callable[..., Any] = scorer.compute_score
    if name == "bleu":
        values, each = partial(compute, verbose=0)(truth, said)
        return {f"bleu_{n + 1}": _score(values[n], each[n]) for n in range(4)}
    value, each = compute(truth, said)
    return {name: _score(value, each)}


def _meteor(truth: Captions, said: Captions) -> Score:
    """METEOR's jar as a child process that is asked line by line."""
    if java() is None:
        return Score(None, reason="needs Java")
    from pycocoevalcap.meteor.meteor import Meteor

    meteor = Meteor()
    try:
        value, each = meteor.compute_score(truth, said)
    except (OSError, ValueError) as error:
        # Its own destructor waits for the lock that a failed call leaves closed.
        if meteor.lock.locked():
            meteor.lock.release()
        raise DiffsoundError(f"METEOR's Java program failed: {error}; see java -version") from error
    finally:
        process = meteor.meteor_p
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            with suppress(OSError):  # what a dead program did not read cannot be flushed
                pipe.close()
    return _score(value, each)


def _score(value: float, each: Sequence[float]) -> Score:
    return Score(float(value), tuple(float(one) for one in each))


def _mean(each: Sequence[float]) -> Score:
    return _score(math.fsum(each) / len(each), each)
