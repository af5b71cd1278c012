"""The paper's tables 2 to 7 from our bundles, cell by cell, with the paper's figures beside ours.

OUT/cells/ROW.json                  a finished row; kept as long as nothing it depends on changes
OUT/table-N.md, .csv, .png, .json   the table, its numbers, its picture, and every setting

A row without a bundle is left blank; nothing is made up for it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from diffsound.bundle import CONFIG_FILE, Bundle, resolve
from diffsound.config import Config
from diffsound.data.shards import PreparedData
from diffsound.decoder.config import DiffsoundConfig
from diffsound.errors import ConfigError, InputError
from diffsound.evaluation.captioner import Captioner
from diffsound.evaluation.classifier import Classifier, load_classifier
from diffsound.evaluation.clips import FileClip
from diffsound.evaluation.compare import compare
from diffsound.evaluation.feature_cache import FeatureCache
from diffsound.evaluation.features import extract
from diffsound.evaluation.matcher import Matcher, load_matcher
from diffsound.evaluation.paper_tables import PaperTable, Row, paper_table
from diffsound.evaluation.ranking import (
    Audible,
    CaptionRanker,
    LikelihoodRanker,
    MatchRanker,
    Ranker,
    best,
)
from diffsound.evaluation.run import Heard, caption_comparison
from diffsound.evaluation.score import Score
from diffsound.evaluation.sets import (
    Example,
    Progress,
    choose_examples,
    clips_of,
    make_folder,
    sample_names,
    write_examples,
    write_generated,
    write_json,
    write_real,
)
from diffsound.evaluation.setup import check_same, find_captioner, judge_folder, versions
from diffsound.evaluation.spice import corenlp_folder
from diffsound.evaluation.table_output import write_table
from diffsound.files import sha256
from diffsound.pipeline import TextToSound
from diffsound.weights import fingerprint

SPEED = "s/sound"
_CANDIDATES = 10
# The settings a cell's scores depend on, besides what is fingerprinted.
_DECISIVE = {"seconds", "seed", "sampling", "ranker", "resamples", "allow_few"}


class TableConfig(Config):
    """A table at some scale.

    bundles: by the names the table's rows have (`paper_table(n).models`); rows without one stay
    blank. samples: sounds per text (None: 1, in table 7 the 10 candidates). ranker: what chooses
    among candidates; "caption" is the paper's, "matcher" the run given or the one that ships with
    the bundles. corenlp: the folder of the jars SPICE needs. sampling: over the bundles' defaults,
    of which best_of does not count: a row is about the decoder.
    """

    data: str
    split: str = "test"
    clips: PositiveInt | None = None
    bundles: dict[str, str]
    classifier: str | None = None
    captioner: str | None = None
    matcher: str | None = None
    corenlp: str | None = None
    samples: PositiveInt | None = None
    seconds: PositiveFloat = 5.0
    seed: int = Field(default=0, ge=0)
    sampling: dict[str, Any] = Field(default_factory=dict)
    ranker: Literal["caption", "likelihood", "matcher"] = "caption"
    resamples: int | None = Field(default=None, ge=0)
    allow_few: bool = False
    device: str = "cpu"


@dataclass(frozen=True)
class _Bench:
    """What all cells of a table share."""

    out: Path
    config: TableConfig
    data: PreparedData
    examples: list[Example]
    samples: int
    classifier: Classifier
    captioner: Captioner | None
    matcher: Matcher | None
    corenlp: Path | None
    cache: FeatureCache
    progress: Progress | None


def make_table(
    number: int, config: TableConfig, out: str | Path, progress: Progress | None = None
) -> list[Path]:
    """Measure the rows that are not measured yet and write the table; returns its files."""
    table = paper_table(number)
    unknown = next((name for name in config.bundles if name not in table.models), None)
    if unknown is not None:
        names = ", ".join(table.models)
        raise ConfigError(f"table {number} has no bundle '{unknown}'; its bundles are: {names}")
    jars = corenlp_folder(config.corenlp)
    out = make_folder(Path(out))
    data = PreparedData.open(config.data)
    examples, left_out = choose_examples(data, config.split, config.clips, config.seed)
    check_same(out, {"table": number, "data": sha256(data.folder / "index.json")})
    write_examples(out, examples)
    first = resolve(next(iter(config.bundles.values()), None))
    judge = load_classifier(judge_folder(first, config.classifier, "classifier"))
    captioner = find_captioner(first, config.captioner)
    keeps = [row.keep for row in table.rows if row.keep is not None]
    matcher = None
    if keeps and config.ranker == "matcher":
        matcher = load_matcher(judge_folder(first, config.matcher, "matcher"))
    elif keeps and captioner is None:
        raise InputError(f"table {number} ranks candidates by a captioner; give one in its config")
    samples = config.samples or (_CANDIDATES if keeps else 1)
    with FeatureCache(out / "features.sqlite") as cache:
        bench = _Bench(
            out, config, data, examples, samples, judge, captioner, matcher, jars, cache, progress
        )
        rows = _measure(bench, table)
    settings = {
        "table": number,
        "config": config.model_dump(mode="json"),
        "examples": len(examples),
        "left_out": left_out,
        "samples_per_text": samples,
        "classifier": judge.fingerprint,
        "versions": versions(),
    }
    return write_table(out, number, table, rows, settings)


def _measure(bench: _Bench, table: PaperTable) -> dict[str, dict[str, Score]]:
    """Scores by row id, of the rows that have a bundle."""
    found: dict[str, dict[str, Score]] = {}
    loaded: tuple[str, TextToSound] | None = None
    for row in (row for row in table.rows if row.model in bench.config.bundles):
        folder = resolve(bench.config.bundles[row.model])
        path = make_folder(bench.out / "cells") / f"{row.id}.json"
        plan = _plan(bench, row, folder)
        stored = _read_cell(path, plan)
        if stored is None:
            if loaded is None or loaded[0] != row.model:
                bundle = Bundle.from_pretrained(folder)
                loaded = row.model, TextToSound(bundle, device=bench.config.device)
            stored = _cell(bench, row, folder, loaded[1])
            cell = {"plan": plan, "scores": {name: s.to_json() for name, s in stored.items()}}
            write_json(path, cell)
        found[row.id] = stored
    return found


def _cell(bench: _Bench, row: Row, folder: Path, pipeline: TextToSound) -> dict[str, Score]:
    config = bench.config
    sampling = {"best_of": 1, "layered": False} | config.sampling
    decoder = pipeline.bundle.config.decoder.model
    if isinstance(decoder, DiffsoundConfig):
        evaluations = row.evaluations(decoder.timesteps)
        if evaluations is not None:
            sampling |= {"num_inference_steps": evaluations, "stride": None}
    real = bench.out / f"real-{pipeline.sample_rate}-{config.seconds:g}"
    write_real(
        real, bench.data, bench.examples,
        rate=pipeline.sample_rate, seconds=config.seconds, progress=bench.progress,
    )  # fmt: skip
    # Rows that differ only in what is kept share their sounds.
    made_by = [sha256(folder / CONFIG_FILE), sampling, config.seconds, config.seed]
    sounds = bench.out / "sounds" / f"{row.model}-{_short(made_by)}"
    speed = write_generated(
        sounds, pipeline, bench.examples,
        samples=bench.samples, seconds=config.seconds, seed=config.seed,
        sampling=sampling, progress=bench.progress,
    )  # fmt: skip
    of = sample_names(bench.examples, bench.samples)
    clips = clips_of(sounds, of)
    if row.keep is not None:
        clips = _kept(bench, pipeline, clips, row.keep)
    ids = [example.id for example in bench.examples]
    truth, made = (
        extract(bench.classifier, one, seconds=config.seconds, cache=bench.cache)
        for one in (clips_of(real, ids), clips)
    )
    scores = dict(
        compare(
            truth, made, of=of,
            allow_few=config.allow_few, resamples=config.resamples, seed=config.seed,
        ).scores
    )  # fmt: skip
    if bench.captioner is not None:
        partners = [of[clip.id] for clip in clips]
        scores |= caption_comparison(
            bench.captioner, bench.examples, clips, partners, bench.corenlp
        )
    note = "seconds for one sound, all stages, in batches of 8; the paper: mel only, on a P40"
    scores[SPEED] = Score(SPEED, speed, "lower", note=note)
    return scores


def _kept(
    bench: _Bench, pipeline: TextToSound, clips: Sequence[FileClip], keep: int
) -> list[FileClip]:
    """The best candidates of each text (section VIII-D); clips come text by text."""
    count = max(1, round(keep * bench.samples / _CANDIDATES))
    ranker, rate = _ranker(bench, pipeline.bundle), pipeline.sample_rate
    kept: list[FileClip] = []
    for at, example in enumerate(bench.examples):
        candidates = clips[at * bench.samples : (at + 1) * bench.samples]
        heard: list[Audible] = [Heard(clip.wave(rate), rate) for clip in candidates]
        scores = ranker.score(example.caption, heard)
        kept += [candidates[i] for i in best(scores, count)]
    return kept


def _ranker(bench: _Bench, bundle: Bundle) -> Ranker:
    if bench.matcher is not None:
        return MatchRanker(bench.matcher, bundle.text_encoder)
    assert bench.captioner is not None  # make_table refuses a ranking without one
    if bench.config.ranker == "likelihood":
        return LikelihoodRanker(bench.captioner)
    documents = [example.captions for example in bench.examples]
    return CaptionRanker(bench.captioner, documents, corenlp=bench.corenlp)


def _plan(bench: _Bench, row: Row, folder: Path) -> str:
    """A fingerprint of everything that decides a cell's scores."""
    config = bench.config
    heard_by = [
        judge and fingerprint(judge.config.model_dump(mode="json"), judge.state_dict())
        for judge in (bench.captioner, bench.matcher)
    ]
    return _short(
        [
            [example.id for example in bench.examples],
            bench.samples,
            sha256(folder / CONFIG_FILE),
            row.model_dump(mode="json"),
            config.model_dump(mode="json", include=_DECISIVE),
            bench.classifier.fingerprint,
            heard_by,
            bench.corenlp is not None,
        ]
    )


def _short(parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _read_cell(path: Path, plan: str) -> dict[str, Score] | None:
    """A finished cell's scores; None if there is none or it was made otherwise."""
    try:
        content: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if content["plan"] != plan:
            return None
        return {name: Score(**score) for name, score in content["scores"].items()}
    except (OSError, ValueError, KeyError, TypeError):
        return None
