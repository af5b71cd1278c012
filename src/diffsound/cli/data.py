"""`diffsound data`: turn recordings into training shards and inspect them."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from diffsound.cli import options
from diffsound.cli.output import progress_bar
from diffsound.generation.settings import described

if TYPE_CHECKING:
    from diffsound.data.inspect import Summary
    from diffsound.data.shards import ShardInfo

HELP = """Prepare, tokenize and inspect sounds for training.

\b
Examples:
  diffsound data prepare my_sounds --out data/mine --licence cc0
  diffsound data inspect data/mine
  diffsound data mix data/mine --out data/scenes --count 1000
"""

app = typer.Typer(help=HELP, no_args_is_help=True)

Prepared = Annotated[Path, typer.Argument(help="Folder made by `diffsound data prepare`.")]
EngineOption = Annotated[
    Literal["processes", "serial", "ray"], typer.Option("--engine", help="Where the work runs.")
]
Workers = Annotated[int | None, typer.Option(help="Processes; one per core by default.")]
Address = Annotated[
    str | None, typer.Option(help="Ray cluster to use, such as ray://head:10001 or auto.")
]


@app.command()
def prepare(
    source: Annotated[
        str,
        typer.Argument(
            help="KIND:PATH, with KIND one of audioset, audiocaps, esc50, clotho, folder, corpus; "
            "or a path alone, whose kind is detected from its files."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the shards.")],
    audio: Annotated[
        Path | None, typer.Option(help="Folder or tar with the audio, if not next to the metadata.")
    ] = None,
    captions: Annotated[
        Path | None, typer.Option(help="Caption table of a folder: CSV or JSON lines.")
    ] = None,
    licences: Annotated[
        str | None, typer.Option(help="Use only these licences, such as cc0,cc-by.")
    ] = None,
    licence: Annotated[str | None, typer.Option(help="Licence of clips that state none.")] = None,
    author: Annotated[str, typer.Option(help="Author of clips that state none.")] = "",
    valid_share: Annotated[
        float, typer.Option(help="Share of a folder's clips for the split 'valid'.")
    ] = 0.0,
    max_seconds: Annotated[float, typer.Option(help="Longest clip.")] = 10.0,
    min_seconds: Annotated[float, typer.Option(help="Shorter clips are rejected.")] = 0.05,
    long: Annotated[
        Literal["crop", "split"],
        typer.Option(help="Longer clips: crop or split them."),
    ] = "crop",
    fit: Annotated[
        Literal["none", "pad", "loop"],
        typer.Option(help="Extend shorter clips to --max-seconds with silence or by looping."),
    ] = "none",
    trim_db: Annotated[
        float | None, typer.Option(help="Trim ends this many dB below the peak, such as 50.")
    ] = None,
    loudness: Annotated[float | None, typer.Option(help=described("loudness"))] = None,
    store_mel: Annotated[bool, typer.Option(help="Store mels in the shards too.")] = False,
    paraphrases: Annotated[
        bool | None,
        typer.Option(
            "--paraphrases/--no-paraphrases",
            help="Add captions made from class, title and tags "
            "(default: unless people wrote the captions).",
        ),
    ] = None,
    full_band: Annotated[
        bool, typer.Option("--full-band", help="Mel bands up to 11 kHz instead of the paper's 7.6.")
    ] = False,
    clips_per_shard: Annotated[int, typer.Option(help="Clips in one tar file.")] = 256,
    engine: EngineOption = "processes",
    workers: Workers = None,
    address: Address = None,
    quiet: options.Quiet = False,
) -> None:
    """Turn a data set into tar shards of 22.05 kHz mono clips; a rerun adds what is missing."""
    from diffsound.audio.mel import MelConfig
    from diffsound.config import parse_config
    from diffsound.data.clip import PrepareSettings
    from diffsound.data.engines import make_engine
    from diffsound.data.prepare import prepare as run
    from diffsound.data.record import parse_licences
    from diffsound.data.sources import SourceOptions, open_source

    opened = open_source(source, SourceOptions(audio, captions, licence, author, valid_share))
    settings = parse_config(
        PrepareSettings,
        {
            "mel": MelConfig.full_band() if full_band else MelConfig(),
            "max_seconds": max_seconds,
            "min_seconds": min_seconds,
            "long": long,
            "fit": fit,
            "trim_db": trim_db,
            "loudness": loudness,
            "store_mel": store_mel,
            "paraphrases": not opened.human_captions if paraphrases is None else paraphrases,
            "licences": tuple(sorted(parse_licences(licences))) if licences is not None else None,
            "clips_per_shard": clips_per_shard,
        },
        source="options",
    )
    with _counter("preparing", quiet) as count:
        result = run(
            opened,
            out,
            settings,
            make_engine(engine, workers, address),
            progress=lambda shard: count(shard.info),
        )
    if quiet:
        return
    index = result.index
    typer.echo(
        f"{out}: {index.clips} clips, {index.seconds / 3600:.2f} h in {len(index.shards)} shards; "
        f"{len(index.rejected)} rejected, {len(index.near_duplicates)} groups of near-duplicates, "
        f"{len(index.notes)} notes"
    )
    typer.echo(
        f"{result.made} clips prepared in {result.elapsed:.1f} s: "
        f"{result.made / result.elapsed:.1f} clips/s, "
        f"{result.made_seconds / result.elapsed:.0f} audio-hours/hour"
    )


@app.command()
def credits(
    folder: Prepared,
    split: Annotated[str | None, typer.Option(help="Only the clips of this split.")] = None,
) -> None:
    """Print the credits as Markdown: every author, with licences and addresses."""
    from diffsound.data.record import credits as write
    from diffsound.data.shards import PreparedData

    data = PreparedData.open(folder)
    chosen = data.where(split=split) if split else range(len(data.records))
    typer.echo(write([data.records[i] for i in chosen]), nl=False)


@app.command()
def mix(
    folder: Prepared,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the shards of the scenes.")],
    count: Annotated[int, typer.Option(help="Number of scenes.")] = 1000,
    seed: Annotated[int, typer.Option(help="Same seed, same scenes.")] = 0,
    split: Annotated[str, typer.Option(help="Split whose clips are mixed.")] = "train",
    seconds: Annotated[float, typer.Option(help="Length of a scene.")] = 10.0,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override a setting: --set distance=0.3")
    ] = None,
    quiet: options.Quiet = False,
) -> None:
    """Mix soundscapes of one to four events, with true captions and timelines."""
    from diffsound.config import apply_overrides, parse_config
    from diffsound.data.shards import PreparedData
    from diffsound.data.soundscape import SceneConfig, write_scenes

    values = apply_overrides({"seconds": seconds}, set_ or [])
    config = parse_config(SceneConfig, values, source="options")
    index = write_scenes(
        PreparedData.open(folder), out, count, seed=seed, split=split, config=config
    )
    if not quiet:
        typer.echo(
            f"{out}: {index.clips} scenes, {index.seconds / 3600:.2f} h in "
            f"{len(index.shards)} shards"
        )


@app.command()
def tokenize(
    folder: Prepared,
    codec: Annotated[
        str | None,
        typer.Option(
            "--codec",
            "--bundle",
            "-b",
            help="Run of a codec, or a bundle; default: the bundled one.",
        ),
    ] = None,
    variants: Annotated[int, typer.Option(help="Number of alignments stored per clip.")] = 1,
    seconds: Annotated[
        float | None, typer.Option(help="Length of every grid; by default the clip's own.")
    ] = None,
    speed: Annotated[
        float, typer.Option(help="Largest change of speed of the variants; 0.06 is a semitone.")
    ] = 0.0,
    engine: EngineOption = "processes",
    workers: Workers = None,
    address: Address = None,
    quiet: options.Quiet = False,
) -> None:
    """Store the clips' tokens under a trained codec, for training a decoder."""
    from diffsound.config import parse_config
    from diffsound.data.derived import TokenizeSettings
    from diffsound.data.derived import tokenize as run
    from diffsound.data.engines import make_engine
    from diffsound.model.bundle import resolve
    from diffsound.training.assemble import load_codec

    values = {"variants": variants, "seconds": seconds, "speed": speed}
    settings = parse_config(TokenizeSettings, values, source="options")
    load = functools.partial(load_codec, str(resolve(codec).absolute()))
    started = time.perf_counter()
    with _shards_bar(folder, "tokenizing", quiet) as done:
        index = run(folder, load, settings, make_engine(engine, workers, address), done)
    if not quiet:
        _report_speed(index.shards, started)
        typer.echo(f"tokens of {index.rows} rows, {index.codebook_size} codes: {index.fingerprint}")


@app.command("encode-text")
def encode_text(
    folder: Prepared,
    encoder: Annotated[
        Literal["minilm", "clip", "bert"], typer.Option(help="Text encoder.")
    ] = "minilm",
    name: Annotated[str | None, typer.Option(help="Folder or hub id of its weights.")] = None,
    official: Annotated[
        bool, typer.Option("--official", help="Use CLIP as the published code does.")
    ] = False,
    engine: EngineOption = "serial",
    workers: Workers = None,
    address: Address = None,
    quiet: options.Quiet = False,
) -> None:
    """Store the features of the clips' captions, for training a decoder."""
    from diffsound.data.derived import encode_text as run
    from diffsound.data.engines import make_engine
    from diffsound.errors import InputError
    from diffsound.text.encoders import load_text_encoder
    from diffsound.text.features import TextEncoderConfig

    if official and encoder != "clip":
        raise InputError("--official belongs to --encoder clip")
    config = (
        TextEncoderConfig.official_clip(name)
        if official
        else TextEncoderConfig(kind=encoder, name=name)
    )
    load = functools.partial(load_text_encoder, config)
    started = time.perf_counter()
    with _shards_bar(folder, "encoding", quiet) as done:
        chosen = make_engine(engine, workers, address)
        index = run(folder, load, config.model_dump(mode="json"), chosen, done)
    if not quiet:
        _report_speed(index.shards, started)
        typer.echo(f"text features of {index.dim} numbers: {index.fingerprint}")


@app.command()
def inspect(
    folder: Prepared,
    html: Annotated[
        Path | None, typer.Option(help="File for the page; by default FOLDER/report.html.")
    ] = None,
    clips: Annotated[int, typer.Option(help="Number of clips on the page; 0: no page.")] = 60,
    seed: Annotated[int, typer.Option(help="Seed that chooses the clips.")] = 0,
    verify: Annotated[bool, typer.Option("--verify", help="Check every shard's checksum.")] = False,
    as_json: options.Json = False,
) -> None:
    """Show what a prepared folder holds, and write a page with spectrograms and players."""
    from diffsound.data.inspect import summarise
    from diffsound.data.shards import PreparedData

    data = PreparedData.open(folder)
    if verify:
        data.verify()
        for fingerprint in summarise(data).tokens:
            data.tokens(fingerprint).verify()
        for fingerprint in summarise(data).text:
            data.text(fingerprint).verify()
    summary = summarise(data)
    if as_json:
        typer.echo(json.dumps(summary.to_json(), ensure_ascii=False, indent=2))
    else:
        _print_table(summary)
    if clips > 0:
        from diffsound.data.inspect import write_report

        target = html or folder / "report.html"
        write_report(data, target, clips=clips, seed=seed)
        typer.echo(f"page: {target}", err=as_json)


def _print_table(summary: Summary) -> None:
    from rich.console import Console
    from rich.table import Table

    seconds, captions = summary.seconds, summary.captions
    rows = {
        "clips": f"{summary.clips} ({_few(summary.splits)})",
        "hours": f"{summary.hours:.2f}",
        "seconds": ", ".join(f"{name} {value:g}" for name, value in seconds.items()),
        "sources": _few(summary.sources),
        "labels": f"{len(summary.labels)}: {_few(summary.labels)}",
        "captions": f"{captions['captions']}, {captions['distinct_captions']} distinct, "
        f"{captions['vocabulary']} words",
        "licences": _few(summary.licences),
        "rejected": f"{len(summary.rejected_clips)}"
        + (f": {_few(summary.rejected)}" if summary.rejected else ""),
        "near-duplicates": f"{len(summary.near_duplicates)} groups, "
        f"{summary.duplicates_across_splits} across splits",
        "notes": str(len(summary.notes)),
        "shards": f"{summary.shards}, {summary.megabytes:g} MB",
        "tokens": ", ".join(summary.tokens) or "none",
        "text": ", ".join(summary.text) or "none",
    }
    table = Table(title=summary.folder, show_header=False)
    for name, value in rows.items():
        # Labels and reasons come from the data: brackets in them are not markup.
        table.add_row(name, value.replace("[", "\\["))
    Console().print(table)


def _few(counts: dict[str, int], most: int = 8) -> str:
    parts = [f"{name} {count}" for name, count in list(counts.items())[:most]]
    return ", ".join(parts) + (", …" if len(counts) > most else "")


def _report_speed(shards: tuple[ShardInfo, ...], started: float) -> None:
    elapsed = time.perf_counter() - started
    clips, seconds = sum(s.clips for s in shards), sum(s.seconds for s in shards)
    typer.echo(
        f"{clips} clips in {elapsed:.1f} s: {clips / elapsed:.1f} clips/s, "
        f"{seconds / elapsed:.0f} audio-hours/hour"
    )


@contextmanager
def _shards_bar(folder: Path, label: str, quiet: bool) -> Iterator[Callable[[ShardInfo], None]]:
    """A bar over a prepared folder's shards."""
    from diffsound.data.shards import ClipsIndex, read_index

    index = read_index(ClipsIndex, folder)
    total = max(1, len(index.shards) if index else 1)
    finished = 0
    with progress_bar(label, quiet) as show:

        def done(_: ShardInfo) -> None:
            nonlocal finished
            finished += 1
            show(finished / total)

        yield done


@contextmanager
def _counter(label: str, quiet: bool) -> Iterator[Callable[[Any], None]]:
    """A running count of clips; the size of a source is not known in advance."""
    import sys

    if quiet or not sys.stderr.isatty():
        yield lambda info: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    text = TextColumn("{task.description}: {task.completed} clips, {task.fields[hours]:.2f} h")
    console = Console(stderr=True)
    with Progress(
        SpinnerColumn(), text, TimeElapsedColumn(), console=console, transient=True
    ) as progress:
        task = progress.add_task(label, total=None, hours=0.0)
        hours = 0.0

        def count(info: ShardInfo) -> None:
            nonlocal hours
            hours += info.seconds / 3600
            progress.update(task, advance=info.clips, hours=hours)

        yield count
