"""Fine-tuning a bundle's decoder on a person's own sounds, from a folder to a new bundle.

WORK/data   the sounds, prepared, tokenised and their captions encoded
WORK/run    the training run, with its log and samples
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from diffsound.bundle import Bundle, BundleConfig, read_config, resolve
from diffsound.config import parse_config
from diffsound.coverage import Coverage
from diffsound.data.clip import PrepareSettings
from diffsound.data.engines import make_engine
from diffsound.data.prepare import prepare
from diffsound.data.record import Record
from diffsound.data.shards import PreparedData
from diffsound.data.sources import Source, SourceReport, open_source
from diffsound.data.tokenize import TokenizeSettings
from diffsound.decoder.build import build_decoder
from diffsound.errors import DataError, InputError
from diffsound.training.assemble import training_captions
from diffsound.training.config import TrainConfig
from diffsound.training.decoder_run import DecoderRun, SampleConfig
from diffsound.training.derive import tokens_of
from diffsound.training.export import load_export
from diffsound.training.grids import GridConfig
from diffsound.training.logs import read_log
from diffsound.training.lora import LoraConfig
from diffsound.training.runs import train_config
from diffsound.weights import load_into

Method = Literal["lora", "full"]

LADDER = (6, 12, 24, 36, 54, 81, 108, 162, 216)
HELD_OUT = 8  # one sound in so many is kept to check by
FEWEST = 4


@dataclass(frozen=True)
class FineTuned:
    """What came of it: the held-out loss at the start and at its best, in nats per token."""

    folder: Path
    clips: int
    held_out: int
    steps: int
    before: float
    after: float

    @property
    def improved(self) -> bool:
        return self.after < self.before


class HeldOut:
    """A source whose every eighth recording is kept for validation, unless it has its own splits.

    Clips of one group (takes of one thing, parts of one recording) stay together where there are
    groups enough; ten numbered takes of one thing are divided.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.name, self.root = source.name, source.root
        self.human_captions = source.human_captions

    def records(self, report: SourceReport) -> Iterator[Record]:
        records = list(self.source.records(report))
        if any(record.split != "train" for record in records):
            yield from records
            return
        groups = list(dict.fromkeys(record.group for record in records))
        keys = [record.group if len(groups) >= FEWEST else record.id for record in records]
        order = {key: place for place, key in enumerate(dict.fromkeys(keys))}
        every = min(HELD_OUT, len(order))
        for record, key in zip(records, keys, strict=True):
            held = order[key] % every == every - 1
            yield replace(record, split="valid" if held else "train")


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

    Started again after an interruption it goes on where it was.
    """
    out = Path(out)
    if (out / "config.json").exists():
        raise InputError(f"{out} already holds a bundle; choose another --out")
    origin = resolve(bundle)
    config = read_config(origin)
    work = Path(work) if work is not None else out.with_name(f"{out.name}-work")
    data = own_sounds(sounds, work / "data", config)
    say(f"{len(data)} sounds, {len(data.where(split='valid'))} of them kept to check by")
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
            # Few clips over-fit at a rate that thousands bear; an update of low rank bears more.
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
            tensorboard=False,
        ),
    )
    train_config(settings, data.folder, work / "run", quiet=quiet)
    result = _result(work / "run", out, data)
    _write(origin, config, work / "run", out, name or out.name, data, result, method)
    return result


def own_sounds(sounds: str | Path, folder: Path, bundle: BundleConfig) -> PreparedData:
    """The sounds, prepared for the bundle's codec; a folder that is prepared is taken as it is."""
    if (Path(sounds) / "index.json").is_file():
        data = PreparedData.open(sounds)
    else:
        settings = PrepareSettings(
            mel=bundle.codec.mel, max_seconds=10.0, long="split", clips_per_shard=64
        )
        prepare(HeldOut(open_source(str(sounds))), folder, settings, make_engine("serial"))
        data = PreparedData.open(folder)
    if len(data.where(split="train")) < FEWEST - 1 or not data.where(split="valid"):
        raise DataError(
            f"{sounds} gives {len(data)} usable sounds; {FEWEST} are the least to learn from and "
            "check by (diffsound data inspect says which were left out and why)"
        )
    return data


def rungs(widths: list[int], batch: int) -> tuple[int, ...]:
    """The rungs of the ladder that grids of these widths fill whole batches of.

    A rung with too few clips is left to the next one; the longest clips, if there are too few of
    them, are cut to the last rung that has enough.
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
    return FineTuned(
        folder=out,
        clips=len(data),
        held_out=len(data.where(split="valid")),
        steps=best[0],
        before=scores[0][1],
        after=best[1],
    )


def _write(
    origin: Path,
    config: BundleConfig,
    run: Path,
    out: Path,
    name: str,
    data: PreparedData,
    result: FineTuned,
    method: Method,
) -> None:
    """The bundle with its decoder replaced by the run's."""
    before = Bundle.from_pretrained(origin)
    decoder = build_decoder(config.decoder.model)
    load_into(decoder, load_export(run)[2], str(run))
    told = (
        f"\n## Fine-tuned\n\nFrom `{config.name}` on {result.clips - result.held_out} sounds "
        f"({method}, {result.steps} steps). Loss on {result.held_out} held-out sounds: "
        f"{result.before:.3f} before, {result.after:.3f} after.\n"
    )
    fresh = parse_config(BundleConfig, config.model_dump(mode="json") | {"name": name, "files": {}})
    Bundle(
        fresh,
        before.codec,
        decoder,
        before.vocoder,
        card=before.card.rstrip() + "\n" + told,
        judges=before.judges,
        coverage=_coverage(before, data),
    ).save_pretrained(out, torch.float16)


def _coverage(before: Bundle, data: PreparedData) -> Coverage | None:
    """What the bundle knew already, and the captions it has now learned."""
    if before.coverage is None:
        return None
    captions, pooled = training_captions(data, before.text_encoder.fingerprint)
    known = set(before.coverage.captions)
    fresh = [place for place, caption in enumerate(captions) if caption not in known]
    return Coverage.choose(
        [*before.coverage.captions, *(captions[place] for place in fresh)],
        torch.cat([before.coverage.vectors, pooled[fresh]]),
    )
