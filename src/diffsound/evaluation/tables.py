"""The paper's tables 2 to 7 from our bundles, cell by cell, with the paper's figures beside ours;
and table 8, ours, from the paper's method to the shipped one.

OUT/cells/ROW.json                  a finished row; kept as long as nothing it depends on changes
OUT/table-N.md, .csv, .png, .json   the table, its numbers, its picture, and every setting

The table is written again after every row. A row without a bundle is left blank; nothing is made
up for it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, PositiveFloat, PositiveInt

from diffsound.config import Config
from diffsound.data.shards import PreparedData
from diffsound.decoder.ar import ARDecoder
from diffsound.decoder.config import DiffsoundConfig
from diffsound.errors import ConfigError, DataError, InputError
from diffsound.evaluation.captions import CaptionRanker, ClipSound, caption_comparison
from diffsound.evaluation.compare import compare
from diffsound.evaluation.features import FeatureCache, ScoredClip, clips_of, extract
from diffsound.evaluation.metrics import RESAMPLES, Score, mean_score
from diffsound.evaluation.paper_tables import PaperTable, Row, paper_table, write_table
from diffsound.evaluation.sets import (
    Example,
    Progress,
    check_same,
    choose_examples,
    find_captioner,
    judge_folder,
    sample_names,
    versions,
    write_examples,
    write_generated,
    write_json,
    write_real,
)
from diffsound.evaluation.spice import checksums, corenlp_folder
from diffsound.files import make_folder, read_json, sha256
from diffsound.generation.bench import watched
from diffsound.generation.pipeline import TextToSound
from diffsound.judges.captioner import Captioner
from diffsound.judges.classifier import Classifier, load_classifier
from diffsound.judges.ranking import (
    Audible,
    LikelihoodRanker,
    Matcher,
    MatcherRanker,
    Ranker,
    best,
    load_matcher,
)
from diffsound.model.bundle import CONFIG_FILE, Bundle, resolve
from diffsound.text import clean_prompt
from diffsound.weights import fingerprint

MATCH = "match"
_CANDIDATES = 10
# The settings a cell's scores depend on, besides what is fingerprinted.
_DECISIVE = {"seconds", "seed", "sampling", "ranker", "resamples", "allow_few", "texts"}
# Of the bundles' defaults these do not count: a row is about the decoder, drawn as the paper does.
_PLAIN = {"best_of": 1, "layered": False, "guidance_scale": 1.0, "truncation": 1.0}


class TableConfig(Config):
    """A table at some scale.

    bundles: by the names the table's rows have (`paper_table(n).models`); rows without one stay
    blank. sources: only clips of these. texts: how many captions of each clip are made into sounds
    (None: all). samples: sounds per text (None: 1, in table 7 the 10 candidates). ranker: what
    chooses among candidates; "caption" is the paper's, "matcher" the run given or the one that
    ships with the bundles. corenlp: the folder of the jars SPICE needs. sampling: over the bundles'
    defaults, of which best_of, layered, guidance and truncation do not count. shared: the folder of
    sounds and features, for tables that have rows in common (None: the table's own).
    """

    data: str
    split: str = "test"
    clips: PositiveInt | None = None
    sources: tuple[str, ...] | None = None
    texts: PositiveInt | None = 1
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
    shared: str | None = None
    device: str = "cpu"


@dataclass(frozen=True)
class _Bench:
    """What all cells of a table share."""

    out: Path
    shared: Path
    config: TableConfig
    data: PreparedData
    examples: list[Example]
    prompts: list[Example]  # one for each text: its id is the clip's with a number
    samples: int
    classifier: Classifier
    captioner: Captioner | None
    matcher: Matcher | None
    corenlp: Path | None
    cache: FeatureCache
    progress: Progress | None

    @property
    def resamples(self) -> int:
        return RESAMPLES if self.config.resamples is None else self.config.resamples


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
    examples, left_out = _examples(data, config)
    check_same(out, {"table": number, "data": sha256(data.folder / "index.json")})
    write_examples(out, examples)
    first = resolve(next(iter(config.bundles.values()), None))
    judge = load_classifier(judge_folder(first, config.classifier, "classifier"))
    captioner = find_captioner(first, config.captioner)
    keeps = [row.keep for row in table.rows if row.keep is not None]
    matcher = _matcher(first, config) if keeps else None
    if keeps and config.ranker == "matcher" and matcher is None:
        raise InputError(f"table {number} ranks candidates by a matcher; give one in its config")
    if keeps and config.ranker != "matcher" and captioner is None:
        raise InputError(f"table {number} ranks candidates by a captioner; give one in its config")
    samples = config.samples or (_CANDIDATES if keeps else 1)
    shared = out if config.shared is None else make_folder(Path(config.shared))
    with FeatureCache(shared / "features.sqlite") as cache:
        bench = _Bench(
            out, shared, config, data, examples, _prompts(examples, config.texts), samples, judge,
            captioner, matcher, jars, cache, progress,
        )  # fmt: skip
        settings = _settings(bench, number, left_out, bool(keeps))
        files: list[Path] = []
        for rows in _measure(bench, table):
            files = write_table(out, number, table, rows, settings)
    return files


def _settings(bench: _Bench, number: int, left_out: dict[str, str], ranked: bool) -> dict[str, Any]:
    """What a table rests on, for its head and its JSON."""
    config, jars = bench.config, bench.corenlp
    return {
        "table": number,
        "config": config.model_dump(mode="json"),
        "examples": len(bench.examples),
        "left_out": left_out,
        "texts": len(bench.prompts),
        "samples_per_text": bench.samples,
        "ranked_by": _ranker_name(bench) if ranked else None,
        "text_encoders": _text_encoders(config),
        "classifier": bench.classifier.fingerprint,
        "spice": None if jars is None else checksums(jars),
        "versions": versions(),
    }


def _examples(data: PreparedData, config: TableConfig) -> tuple[list[Example], dict[str, str]]:
    """The clips a table is about, and those that cannot be used with the reason."""
    if config.sources is None:
        return choose_examples(data, config.split, config.clips, config.seed)
    every, left_out = choose_examples(data, config.split, None, config.seed)
    wanted = [e for e in every if data.records[data.position(e.id)].source in config.sources]
    if not wanted:
        raise DataError(f"{data.folder} has no clip of {', '.join(config.sources)} to judge by")
    if config.clips is not None and config.clips < len(wanted):
        rng = np.random.default_rng(config.seed)
        drawn = rng.choice(len(wanted), size=config.clips, replace=False)
        wanted = [wanted[at] for at in sorted(drawn.tolist())]
    return wanted, left_out


def _prompts(examples: Sequence[Example], texts: int | None) -> list[Example]:
    """Every clip once for each of its first captions that can be a prompt."""
    found = []
    for example in examples:
        usable = []
        for caption in example.captions:
            with suppress(InputError):
                usable.append(clean_prompt(caption))
        usable = list(dict.fromkeys(filter(None, usable)))[:texts]
        found += [
            replace(example, id=f"{example.id}.t{n}", caption=text) for n, text in enumerate(usable)
        ]
    return found


def _clip(prompt: Example) -> str:
    """The id of the clip that a prompt is a caption of."""
    return prompt.id.rpartition(".t")[0]


def _matcher(bundle: Path, config: TableConfig) -> Matcher | None:
    """The matcher given, or one that ships with the bundle or the package, if there is one."""
    try:
        return load_matcher(judge_folder(bundle, config.matcher, "matcher"))
    except InputError:
        if config.matcher is not None:
            raise
        return None


def _text_encoders(config: TableConfig) -> dict[str, str]:
    """What each bundle reads texts with, by the name of the bundle."""
    found = {}
    for name, folder in config.bundles.items():
        content = read_json(resolve(folder) / CONFIG_FILE)
        found[name] = str(content["text_encoder"]["kind"])
    return found


def _measure(bench: _Bench, table: PaperTable) -> Iterator[dict[str, dict[str, Score]]]:
    """Scores by row id: first those that were measured before, then with one row more each time."""
    cells = make_folder(bench.out / "cells")
    found: dict[str, dict[str, Score]] = {}
    missing: list[tuple[Row, Path, str]] = []
    for row in (row for row in table.rows if row.model in bench.config.bundles):
        folder = resolve(bench.config.bundles[row.model])
        plan = _plan(bench, row, folder)
        stored = _read_cell(cells / f"{row.id}.json", plan)
        if stored is None:
            missing.append((row, folder, plan))
        else:
            found[row.id] = stored
    yield found
    loaded: tuple[str, TextToSound] | None = None
    for row, folder, plan in missing:
        if loaded is None or loaded[0] != row.model:
            bundle = Bundle.from_pretrained(folder)
            loaded = row.model, TextToSound(bundle, device=bench.config.device)
        found[row.id] = _cell(bench, row, folder, loaded[1])
        scores = {name: score.to_json() for name, score in found[row.id].items()}
        write_json(cells / f"{row.id}.json", {"plan": plan, "scores": scores})
        yield found


def _cell(bench: _Bench, row: Row, folder: Path, pipeline: TextToSound) -> dict[str, Score]:
    config = bench.config
    sampling = _PLAIN | config.sampling | row.sampling
    decoder = pipeline.bundle.config.decoder.model
    if isinstance(decoder, DiffsoundConfig):
        sampling |= {"num_inference_steps": None, "stride": row.stride_of(decoder.timesteps) or 1}
    real = bench.shared / f"real-{pipeline.sample_rate}-{config.seconds:g}"
    write_real(
        real, bench.data, bench.examples,
        rate=pipeline.sample_rate, seconds=config.seconds, progress=bench.progress,
    )  # fmt: skip
    # Rows that differ only in what is kept share their sounds.
    made_by = [sha256(folder / CONFIG_FILE), sampling, config.seconds, config.seed]
    sounds = bench.shared / "sounds" / f"{pipeline.bundle.config.name}-{_short(made_by)}"
    write_generated(
        sounds, pipeline, bench.prompts,
        samples=bench.samples, seconds=config.seconds, seed=config.seed,
        sampling=sampling, progress=bench.progress,
    )  # fmt: skip
    names = {prompt.id: _clip(prompt) for prompt in bench.prompts}
    of = {name: names[text] for name, text in sample_names(bench.prompts, bench.samples).items()}
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
            bench.captioner, bench.examples, clips, partners, bench.corenlp,
            resamples=bench.resamples,
        )  # fmt: skip
    if bench.matcher is not None:
        scores[MATCH] = _match(bench, pipeline.bundle, clips)
    texts = [prompt.caption for prompt in bench.prompts]
    return scores | seconds_per_sound(pipeline, texts, config.seconds, sampling)


def _match(bench: _Bench, bundle: Bundle, clips: Sequence[ScoredClip]) -> Score:
    """How near the matcher finds the sounds to their texts."""
    assert bench.matcher is not None
    if bench.matcher.config.text_fingerprint != bundle.text_encoder.fingerprint:
        return Score(MATCH, None, "higher", note="the matcher reads another text encoder's vectors")
    ranker = MatcherRanker(bench.matcher, bundle.text_encoder)
    rate = bench.matcher.config.mel.sample_rate
    texts = {prompt.id: prompt.caption for prompt in bench.prompts}
    of = [clip.id.rpartition(".")[0] for clip in clips]
    found = [
        ranker.score(texts[text], [ClipSound(clip.wave(rate), rate)])[0]
        for text, clip in zip(of, clips, strict=True)
    ]
    clip_ids = [text.rpartition(".t")[0] for text in of]
    note = "cosine of sound and text by the matcher, which is not the paper's"
    return mean_score(
        MATCH, np.array(found), note=note, groups=clip_ids,
        resamples=bench.resamples, seed=bench.config.seed,
    )  # fmt: skip


def _kept(
    bench: _Bench, pipeline: TextToSound, clips: Sequence[ScoredClip], keep: int
) -> list[ScoredClip]:
    """The best candidates of each text (section VIII-D); clips come text by text."""
    count = max(1, round(keep * bench.samples / _CANDIDATES))
    ranker, rate = _ranker(bench, pipeline.bundle), pipeline.sample_rate
    kept: list[ScoredClip] = []
    for at, example in enumerate(bench.prompts):
        candidates = clips[at * bench.samples : (at + 1) * bench.samples]
        heard: list[Audible] = [ClipSound(clip.wave(rate), rate) for clip in candidates]
        scores = ranker.score(example.caption, heard)
        kept += [candidates[i] for i in best(scores, count)]
    return kept


def _ranker_name(bench: _Bench) -> str:
    """What `_ranker` ranks by, without a bundle."""
    if bench.config.ranker == "matcher":
        return MatcherRanker.name
    if bench.config.ranker == "likelihood":
        return LikelihoodRanker.name
    return "SPICE + CIDEr" if bench.corenlp is not None else "scene graph + CIDEr"


def _ranker(bench: _Bench, bundle: Bundle) -> Ranker:
    if bench.config.ranker == "matcher" and bench.matcher is not None:
        return MatcherRanker(bench.matcher, bundle.text_encoder)
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
            [[prompt.id, prompt.caption] for prompt in bench.prompts],
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
        content: Mapping[str, Any] = read_json(path)
        if content["plan"] != plan:
            return None
        return {name: Score(**score) for name, score in content["scores"].items()}
    except (OSError, ValueError, KeyError, TypeError):
        return None


MEL, WAVE, UNCACHED = "s/mel", "s/sound", "s/mel, no cache"
_SOUNDS = 3  # timed one at a time, after one that is not


def seconds_per_sound(
    pipeline: TextToSound, texts: Sequence[str], seconds: float, sampling: Mapping[str, Any]
) -> dict[str, Score]:
    """Seconds without the vocoder and with it; of an AR decoder also without its cache."""
    mel, wave = _timed(pipeline, texts, seconds, sampling)
    how = f"{torch.get_num_threads()} threads, one sound at a time"
    scores = {
        MEL: Score(MEL, mel, "lower", note=f"without the vocoder, {how}; the paper: on a P40"),
        WAVE: Score(WAVE, wave, "lower", note=f"all stages, {how}"),
    }
    decoder = pipeline.bundle.decoder
    if isinstance(decoder, ARDecoder):
        note = f"AR with a cache of keys and values, {how}"
        scores[MEL] = replace(scores[MEL], note=note)
        decoder.use_cache = False
        try:
            mel, _ = _timed(pipeline, texts, seconds, sampling)
        finally:
            decoder.use_cache = True
        note = f"AR that computes everything again at every step, as the paper's does; {how}"
        scores[UNCACHED] = Score(UNCACHED, mel, "lower", note=note)
    return scores


def _timed(
    pipeline: TextToSound, texts: Sequence[str], seconds: float, sampling: Mapping[str, Any]
) -> tuple[float, float]:
    """Seconds to a mel and to a wave, means of a few sounds."""
    pipeline(texts[0], duration=seconds, seed=0, **sampling)
    chosen = texts[:_SOUNDS]
    started = time.perf_counter()
    with watched(pipeline) as spent:
        for text in chosen:
            pipeline(text, duration=seconds, seed=0, **sampling)
    whole = time.perf_counter() - started
    return (whole - spent["vocoder"]) / len(chosen), whole / len(chosen)
