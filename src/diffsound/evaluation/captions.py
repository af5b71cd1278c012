"""What a captioner says of clips (the audio caption loss, section VI-B), scored against captions.

    scores = caption_scores(["a dog barks"], [["a dog is barking", "barking"]])
    scores["cider"].value, scores["spice"].reason

CIDEr-D, BLEU, ROUGE-L and METEOR are pycocoevalcap's, SPICE runs where its jars are, and a
scene-graph score of our own needs neither Java nor jars. A metric that cannot run says why; it is
never a number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from diffsound.errors import DiffsoundError, InputError
from diffsound.evaluation.features import ScoredClip
from diffsound.evaluation.metrics import RESAMPLES, Score, mean_score
from diffsound.evaluation.sets import Example
from diffsound.evaluation.spice import (
    coco_folder,
    corenlp_folder,
    java,
    missing_reason,
    scene_graph_score,
    spice_scores,
)
from diffsound.judges.captioner import Captioner
from diffsound.judges.ranking import Audible, Ear
from diffsound.text.ptb import ptb_words

# Every metric, with its name in reports.
METRICS = {
    "bleu_1": "BLEU-1",
    "bleu_2": "BLEU-2",
    "bleu_3": "BLEU-3",
    "bleu_4": "BLEU-4",
    "rouge_l": "ROUGE-L",
    "cider": "CIDEr",
    "meteor": "METEOR",
    "spice": "SPICE",
    "scene_graph": "scene graph",
}
_MEANS = {"cider", "meteor", "rouge_l", "spice", "scene_graph"}  # over the captions
COMPARED = ("cider", "spice", "scene_graph")  # the paper's, and what stands in for SPICE


@dataclass(frozen=True)
class CaptionScore:
    """A metric over a set of captions.

    value: of the whole set, None when the metric is not available; reason: why not.
    each: of every caption, in order.
    """

    value: float | None
    each: tuple[float, ...] = ()
    reason: str = ""


def caption_scores(
    candidates: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    metrics: Sequence[str] = tuple(METRICS),
    corenlp: str | Path | None = None,
) -> dict[str, CaptionScore]:
    """Score each candidate against its references, for every metric asked for.

    corenlp: folder with the jars that SPICE needs (by default that of DIFFSOUND_CORENLP).
    """
    _check(candidates, references, metrics)
    wanted = set(metrics)
    folder = corenlp_folder(corenlp) if "spice" in wanted else None
    scores: dict[str, CaptionScore] = {}
    if wanted - {"spice", "scene_graph"}:
        coco_folder()
        from pycocoevalcap.bleu.bleu import Bleu
        from pycocoevalcap.cider.cider import Cider
        from pycocoevalcap.rouge.rouge import Rouge

        said = {number: _words([caption]) for number, caption in enumerate(candidates)}
        truth = {number: _words(captions) for number, captions in enumerate(references)}
        if any(name.startswith("bleu") for name in wanted):
            values, each = Bleu(4).compute_score(truth, said, verbose=0)
            scores |= {f"bleu_{n + 1}": _score(values[n], each[n]) for n in range(4)}
        if "rouge_l" in wanted:
            scores["rouge_l"] = _score(*Rouge().compute_score(truth, said))
        if "cider" in wanted and len(said) > 1:
            scores["cider"] = _score(*Cider().compute_score(truth, said))
        elif "cider" in wanted:
            rare = "CIDEr weights words by their rarity among the clips; it needs two clips or more"
            scores["cider"] = CaptionScore(None, reason=rare)
        if "meteor" in wanted:
            scores["meteor"] = _meteor(truth, said)
    if folder is not None and missing_reason(folder) is None:
        scores["spice"] = _mean(spice_scores(candidates, references, folder))
    elif "spice" in wanted:
        scores["spice"] = CaptionScore(None, reason=missing_reason(folder) or "")
    if "scene_graph" in wanted:
        pairs = zip(candidates, references, strict=True)
        scores["scene_graph"] = _mean([scene_graph_score(said, truth) for said, truth in pairs])
    return {name: scores[name] for name in METRICS if name in wanted}


class ClipSound(NamedTuple):
    """A clip's wave as a ranker takes it."""

    wave: np.ndarray
    sample_rate: int


def describe(captioner: Captioner, clips: Iterable[ScoredClip]) -> list[str]:
    """The captioner's sentence about each clip."""
    rate = captioner.mel.sample_rate
    ear = Ear(captioner.mel, captioner.nothing.device, batch_size=1)
    mels = (mel for clip in clips for mel in ear.batches([ClipSound(clip.wave(rate), rate)]))
    return [captioner.caption(mel)[0] for mel in mels]


def caption_comparison(
    captioner: Captioner,
    examples: Sequence[Example],
    clips: Sequence[ScoredClip],
    of: Sequence[str],
    corenlp: Path | None = None,
    metrics: Sequence[str] = COMPARED,
    resamples: int = RESAMPLES,
) -> dict[str, Score]:
    """The audio caption loss (section VI-B) of clips; `of`: the example each was made from.

    corenlp: the folder of the jars that SPICE needs; without it SPICE is not available.
    resamples: of the intervals; 0 for none.
    """
    references = {example.id: list(example.captions) for example in examples}
    said, truth = describe(captioner, clips), [references[name] for name in of]
    found = caption_scores(said, truth, metrics=metrics, corenlp=corenlp)
    scores = {}
    for name, one in found.items():
        low = high = None
        if one.value is not None and name in _MEANS:
            each = mean_score(name, np.array(one.each), groups=of, resamples=resamples)
            low, high = each.low, each.high
        scores[METRICS[name]] = Score(METRICS[name], one.value, "higher", low, high, one.reason)
    return scores


Captions = dict[int, list[str]]


def _check(
    candidates: Sequence[str], references: Sequence[Sequence[str]], metrics: Sequence[str]
) -> None:
    unknown = [name for name in metrics if name not in METRICS]
    if unknown:
        raise InputError(
            f"unknown caption metric '{unknown[0]}'; the metrics are: {', '.join(METRICS)}"
        )
    if not candidates:
        raise InputError("there are no captions to score")
    if len(candidates) != len(references):
        raise InputError(
            f"{len(candidates)} captions need as many lists of references, not {len(references)}"
        )
    for number, truth in enumerate(references):
        if isinstance(truth, str) or not any(reference.strip() for reference in truth):
            raise InputError(f"caption {number} has no list of reference sentences")


def _meteor(truth: Captions, said: Captions) -> CaptionScore:
    """METEOR's jar, a child process that answers line by line."""
    if java() is None:
        return CaptionScore(None, reason="needs Java")
    from pycocoevalcap.meteor.meteor import Meteor

    meteor = Meteor()
    try:
        value, each = meteor.compute_score(truth, said)
    except (OSError, ValueError) as error:
        # Its destructor waits for the lock, which a failed call leaves locked.
        if meteor.lock.locked():
            meteor.lock.release()
        raise DiffsoundError(f"METEOR's Java program failed: {error}; see java -version") from error
    finally:
        process = meteor.meteor_p
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            with suppress(OSError):  # a dead program cannot be flushed to
                pipe.close()
    return _score(value, each)


def _score(value: float, each: Sequence[float]) -> CaptionScore:
    return CaptionScore(float(value), tuple(float(one) for one in each))


def _mean(each: Sequence[float]) -> CaptionScore:
    return _score(math.fsum(each) / len(each), each)


class CaptionRanker:
    """The paper's way to choose candidates (section VIII-D): caption every sound, then add SPICE
    and CIDEr of the caption against the prompt. Without SPICE's jars the scene-graph score takes
    its place, and `name` says so.

    documents: captions of each clip of a corpus, which show which words are rare (CIDEr).
    corenlp: the folder of SPICE's jars (by default that of DIFFSOUND_CORENLP).
    """

    def __init__(
        self,
        captioner: Captioner,
        documents: Iterable[Sequence[str]],
        *,
        corenlp: str | Path | None = None,
    ) -> None:
        self.captioner = captioner
        self._cider = CiderD(_words(captions) for captions in documents)
        self._corenlp = corenlp_folder(corenlp)
        if self._corenlp is not None and (reason := missing_reason(self._corenlp)):
            raise InputError(f"SPICE {reason}; without the jars' folder another score is used")
        self._ear = Ear(captioner.mel, captioner.nothing.device, batch_size=16)

    @property
    def name(self) -> str:
        return f"{'scene graph' if self._corenlp is None else 'SPICE'} + CIDEr"

    def score(self, prompt: str, sounds: Sequence[Audible]) -> list[float]:
        """Semantic score + CIDEr of what is said of each sound."""
        said = self.captions(sounds)
        if self._corenlp is not None:
            meant = spice_scores(said, [[prompt]] * len(said), self._corenlp)
        else:
            meant = [scene_graph_score(caption, [prompt]) for caption in said]
        truth = _words([prompt])
        fluent = [self._cider.score(caption, truth) for caption in _words(said)]
        return [a + b for a, b in zip(meant, fluent, strict=True)]

    def captions(self, sounds: Sequence[Audible]) -> list[str]:
        """What the captioner says of each sound."""
        return [said for mel in self._ear.batches(sounds) for said in self.captioner.caption(mel)]


def _words(captions: Iterable[str]) -> list[str]:
    return [" ".join(ptb_words(caption)) for caption in captions]


class CiderD:
    """CIDEr-D of sentences (words joined by spaces), with the rarity of n-grams fixed in advance.

    pycocoevalcap takes the rarity from the references it is scoring, so a single sentence always
    scores 0 and nothing can be ranked by it; here it is given that of a corpus.
    documents: the captions of each clip of the corpus; an n-gram said of many clips says little.
    """

    def __init__(self, documents: Iterable[Sequence[str]]) -> None:
        coco_folder()
        from pycocoevalcap.cider.cider_scorer import CiderScorer

        self._scorer, corpus = CiderScorer, CiderScorer()
        for captions in documents:
            corpus.cook_append(None, captions)
        if len(corpus.crefs) < 2:
            raise InputError(
                "CIDEr needs the captions of at least two clips to know which words are rare"
            )
        corpus.compute_doc_freq()
        self._frequency, self._clips = corpus.document_frequency, len(corpus.crefs)

    def score(self, sentence: str, references: Sequence[str]) -> float:
        """0 (nothing in common) to 10 (the only reference itself)."""
        if not references:
            raise InputError("CIDEr needs at least one reference")
        scorer = self._scorer(sentence, references)
        scorer.document_frequency = self._frequency
        scorer.crefs += [[]] * (self._clips - 1)  # their number is that of the corpus's clips
        return float(scorer.compute_cider()[0])
