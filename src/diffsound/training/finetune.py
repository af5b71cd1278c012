"""Fine-tuning a bundle's decoder on a person's own sounds, from a folder to a new bundle.

WORK/data                 the sounds, prepared and tokenised, and their encoded captions
WORK/run                  the training run, with its log and samples
WORK/before.wav, after.wav   one prompt, one seed, both models
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

import diffsound
from diffsound.config import parse_config
from diffsound.data.clip import PrepareSettings, prepare_clip
from diffsound.data.derived import TokenizeSettings
from diffsound.data.engines import make_engine
from diffsound.data.prepare import prepare
from diffsound.data.record import Record
from diffsound.data.shards import PreparedData
from diffsound.data.sources import open_source
from diffsound.data.tables import Source, SourceReport
from diffsound.decoder import build_decoder
from diffsound.errors import DataError, DiffsoundError, InputError
from diffsound.model.bundle import Bundle, BundleConfig, read_config, resolve
from diffsound.model.coverage import Coverage
from diffsound.training.assemble import training_captions
from diffsound.training.config import TrainConfig
from diffsound.training.decoder import DecoderRun, LoraConfig, SampleConfig
from diffsound.training.run_files import read_log
from diffsound.training.runs import train_config
from diffsound.training.tokens import GridConfig, tokens_of
from diffsound.weights import load_export, load_into

Method = Literal["lora", "full"]

LADDER = (6, 12, 24, 36, 54, 81, 108, 162, 216)
HELD_OUT = 8  # one sound in eight is kept to check by
FEWEST = 4
PAIR_SECONDS = 4.0


@dataclass(frozen=True)
class FineTuned:
    """The result, with the held-out loss (nats per token) at the start and at its best.

    prompt: one of the sounds' own captions. pair: the same prompt and seed before and after, as two
        WAV files; None if the model did not improve.
    """

    folder: Path
    clips: int
    held_out: int
    steps: int
    before: float
    after: float
    prompt: str
    pair: tuple[Path, Path] | None = None

    @property
    def improved(self) -> bool:
        return self.after < self.before

    @property
    def perplexity_drop(self) -> float:
        """By how much the perplexity of the held-out sounds fell, in percent."""
        return 100 * (1 - math.exp(self.after - self.before))


class HeldOut(Source):
    """A source that keeps some takes of each name for validation, unless it has its own splits.

    Only usable files are counted: a silent or broken one is passed on, to be rejected by name, but
    never held out.
    """

    def __init__(self, source: Source, settings: PrepareSettings) -> None:
        super().__init__(source.root, source.options)
        self.source, self.settings, self.name = source, settings, source.name

    def records(self, report: SourceReport) -> Iterator[Record]:
        records = list(self.source.records(report))
        usable = [record for record in records if self._usable(record)]
        if any(record.split == "valid" for record in usable):
            yield from records
            return
        held = held_out_takes(usable)
        for record in records:
            yield replace(record, split="valid" if record.id in held else "train")

    def _usable(self, record: Record) -> bool:
        try:
            return bool(prepare_clip(record, self.settings))
        except DiffsoundError:
            return False


def held_out_takes(records: Sequence[Record]) -> set[str]:
    """The ids of one record in eight, spread over the names; a name keeps a take to learn from.

    If every name has a single take, every eighth name is held out.
    """
    groups: dict[str, list[str]] = {}
    for record in records:
        groups.setdefault(record.group, []).append(record.id)
    wanted = max(1, len(records) // HELD_OUT)
    spare = [takes[1:] for takes in sorted(groups.values(), key=len, reverse=True)]
    # The last spare take of each name, the largest names first, then the take before it, and so on.
    rounds = itertools.zip_longest(*(reversed(takes) for takes in spare))
    found = [take for takes in rounds for take in takes if take is not None][:wanted]
    return set(found or [record.id for record in records[HELD_OUT - 1 :: HELD_OUT] or records[-1:]])


def finetune(
    bundle: str | Path | None,
    sounds: str | Path,
    out: str | Path,
    *,
    minutes: float = 30.0,
    method: Method = "lora",
    rank: int = 8,
    lr: float | None = None,
    seed: int = 0,
    name: str | None = None,
    work: str | Path | None = None,
    quiet: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> FineTuned:
    """Teach a bundle the sounds of a folder (or of a prepared one) and write a new bundle.

    If it is interrupted, the same call resumes it.
    """
    out = Path(out)
    if (out / "config.json").exists():
        raise InputError(f"{out} already holds a bundle; choose another --out")
    origin = resolve(bundle)
    config = read_config(origin)
    work = Path(work) if work is not None else out.with_name(f"{out.name}-work")
    data = own_sounds(sounds, work / "data", config)
    say(f"{len(data)} sounds, {len(data.where(split='valid'))} of them held out to check progress")
    for clip in data.index.rejected:
        say(f"left out: {clip.id}: {clip.reason}")
    tokens = tokens_of(data, str(origin), None, TokenizeSettings(variants=4))
    train = data.where(split="train")
    batch = min(8, len(train))
    widths = [data.tokens(tokens.fingerprint).of(i).shape[-1] for i in train]
    full = method == "full"
    settings = DecoderRun(
        stage="decoder",
        init=str(origin),
        codec=str(origin),
        vocoder=str(origin),
        decoder=config.decoder.model,
        tokenize=TokenizeSettings(variants=4),
        text_encoder=config.text_encoder,
        grids=GridConfig(widths=rungs(widths, batch), fill="silence"),
        lora=None if full else LoraConfig(rank=rank, alpha=2.0 * rank),
        valid_clips=64,
        valid_passes=4,
        samples=SampleConfig(clips=2, guidance_scale=config.defaults.guidance_scale),
        train=TrainConfig(
            seed=seed,
            batch_size=batch,
            max_minutes=minutes,
            # A few clips over-fit at a rate that suits thousands; a low-rank update allows more.
            lr=lr or (1e-4 if full else 1e-3),
            betas=(0.9, 0.96),
            weight_decay=0.01,
            warmup_steps=20,
            ema_decay=0.98,
            validate_steps=max(25, len(train) // batch),
            validate_first=True,
            patience=8,
            checkpoint_minutes=5.0,
            log_steps=10,
            log="none",
        ),
    )
    train_config(settings, data.folder, work / "run", quiet=quiet)
    result = _result(work / "run", out, data)
    before = Bundle.from_pretrained(origin)
    after = _tuned(before, work / "run", name or out.name, data, result, method)
    after.save_pretrained(out, torch.float16)
    if result.improved:
        pair = _compare(before, out, result.prompt, seed, work)
        result = replace(result, pair=pair)
    return result


def own_sounds(sounds: str | Path, folder: Path, bundle: BundleConfig) -> PreparedData:
    """The sounds, prepared for the bundle's codec; a prepared folder is used as it is."""
    if (Path(sounds) / "index.json").is_file():
        data = PreparedData.open(sounds)
        if not data.where(split="valid"):
            raise DataError(
                f"{sounds} has no clips in the split 'valid'; prepare it with --valid-share 0.1"
            )
    else:
        settings = PrepareSettings(
            mel=bundle.codec.mel, max_seconds=10.0, long="split", clips_per_shard=64
        )
        source = HeldOut(open_source(str(sounds)), settings)
        prepare(source, folder, settings, make_engine("serial"))
        data = PreparedData.open(folder)
    if len(data.where(split="train")) < FEWEST - 1 or not data.where(split="valid"):
        rejected = "; ".join(f"{clip.id}: {clip.reason}" for clip in data.index.rejected[:3])
        left_out = f"; left out: {rejected}" if rejected else ""
        raise DataError(
            f"{sounds} has {len(data)} usable sounds, at least {FEWEST} are needed{left_out}"
        )
    return data


def rungs(widths: list[int], batch: int) -> tuple[int, ...]:
    """The rungs of the ladder for which grids of these widths fill whole batches.

    Clips of a rung with too few of them go to the next rung; if the longest clips are too few, they
    are cut to the last rung that has enough.
    """
    chosen: list[int] = []
    waiting, lower = 0, 0
    for rung in LADDER:
        waiting += sum(lower < width <= rung for width in widths)
        lower = rung
        if waiting >= batch:
            chosen.append(rung)
            waiting = 0
    return tuple(chosen) or (LADDER[-1],)


def _result(run: Path, out: Path, data: PreparedData) -> FineTuned:
    scores = [(entry["step"], entry["loss"]) for entry in read_log(run) if entry["kind"] == "valid"]
    best = min(scores, key=lambda score: score[1])
    learned = Counter(
        caption for i in data.where(split="train") for caption in data.records[i].captions[:1]
    )
    return FineTuned(
        folder=out,
        clips=len(data),
        held_out=len(data.where(split="valid")),
        steps=best[0],
        before=scores[0][1],
        after=best[1],
        prompt=learned.most_common(1)[0][0] if learned else "a sound",
    )


def _tuned(
    before: Bundle, run: Path, name: str, data: PreparedData, result: FineTuned, method: Method
) -> Bundle:
    """The bundle with the run's decoder, and a card and coverage of its own."""
    config = before.config
    decoder = build_decoder(config.decoder.model)
    load_into(decoder, load_export(run)[2], str(run))
    fresh = parse_config(BundleConfig, config.model_dump(mode="json") | {"name": name, "files": {}})
    return Bundle(
        fresh,
        before.codec,
        decoder,
        before.vocoder,
        card=_card(before, name, data, result, method),
        judges=before.judges,
        coverage=_coverage(before, data),
    )


def _card(before: Bundle, name: str, data: PreparedData, result: FineTuned, method: Method) -> str:
    """A model card: what it was trained on, how well, and the card of the model it came from."""
    records = [data.records[i] for i in data.where(split="train")]
    minutes = sum(record.seconds or 0.0 for record in records) / 60
    names = Counter(record.captions[0] for record in records if record.captions)
    listed = "\n".join(f"- {caption} ({count})" for caption, count in names.most_common(50))
    licences = Counter(record.licence_stated or record.licence for record in records)
    stated = ", ".join(f"{licence} ({count})" for licence, count in licences.most_common())
    more = f"\n- … and {len(names) - 50} more" if len(names) > 50 else ""
    # Its title becomes a section of this card, its sections go one level down.
    origin = re.sub(r"^(#+ )", r"##\1", before.card, flags=re.MULTILINE).strip()
    return f"""# {name}

`{before.config.name}`, fine-tuned on {len(records)} sounds ({method}, {result.steps} steps).

## Data

{len(records)} recordings, {minutes:.1f} minutes. Licences as stated: {stated}.
Captions and their number of recordings:

{listed}{more}

## Scores

| held-out sounds | {result.held_out} |
| --- | --- |
| loss before | {result.before:.3f} nats per token |
| loss after | {result.after:.3f} nats per token |
| perplexity | {-result.perplexity_drop:+.1f} % |

Scores of the model it was fine-tuned from, below, do not hold for this one.

## Fine-tuned from `{before.config.name}`

{origin}
"""


def _compare(
    before: Bundle, tuned: Path, prompt: str, seed: int, folder: Path
) -> tuple[Path, Path]:
    """The same prompt and seed with both models, as two files to listen to."""
    paths = folder / "before.wav", folder / "after.wav"
    seconds = min(PAIR_SECONDS, before.config.defaults.duration)
    for bundle, path in zip((before, Bundle.from_pretrained(tuned)), paths, strict=True):
        (sound,) = diffsound.TextToSound(bundle)(prompt, duration=seconds, seed=seed)
        sound.save(path, overwrite=True)
    return paths


def _coverage(before: Bundle, data: PreparedData) -> Coverage | None:
    """The captions the bundle knew, and those it has learned now."""
    if before.coverage is None:
        return None
    captions, pooled, lengths = training_captions(data, before.text_encoder.fingerprint)
    known = set(before.coverage.captions)
    fresh = [place for place, caption in enumerate(captions) if caption not in known]
    old = before.coverage.lengths
    if old is None:
        old = torch.zeros(len(known), lengths.shape[1])
    return Coverage.choose(
        [*before.coverage.captions, *(captions[place] for place in fresh)],
        torch.cat([before.coverage.vectors, pooled[fresh]]),
        lengths=torch.cat([old, lengths[fresh]]),
    )
