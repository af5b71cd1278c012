"""Text features of a prepared folder's captions, so that training never runs the text encoder."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from diffsound.data.derived import Clip, DerivedTask, make_derived, make_folder
from diffsound.data.engines import Engine
from diffsound.data.index import ShardInfo, TextIndex, read_index, write_index
from diffsound.data.shards import PreparedData
from diffsound.text.features import TextEncoder, TextFeatures

# Texts encoded at a time; a shard's texts are gathered so that repeats are encoded once.
_BATCH = 64


def encode_text(
    folder: str | Path,
    load: Callable[[], TextEncoder],
    encoder_config: Mapping[str, Any],
    engine: Engine | None = None,
    progress: Callable[[ShardInfo], None] | None = None,
) -> TextIndex:
    """Write `folder/text/<fingerprint>`; a rerun makes only what is missing.

    encoder_config: kept in the index, so that the encoder can be loaded again.
    """
    data = PreparedData.open(folder)
    encoder = load()
    out = data.folder / "text" / encoder.fingerprint
    make_folder(out)
    index = TextIndex(
        complete=False,
        fingerprint=encoder.fingerprint,
        dim=encoder.dim,
        encoder=dict(encoder_config),
    )
    if read_index(TextIndex, out) is None:
        write_index(index, out)
    tasks = [
        DerivedTask(
            kind="text",
            number=number,
            clips=shard,
            clips_folder=str(data.folder),
            folder=str(out),
            fingerprint=encoder.fingerprint,
            settings={},
            load=load,
            make=text_entries,
        )
        for number, shard in enumerate(data.index.shards)
    ]
    shards = make_derived(tasks, engine, progress)
    index = index.model_copy(update={"complete": True, "shards": shards})
    write_index(index, out)
    return index


def text_entries(
    encoder: TextEncoder, settings: Mapping[str, Any], clips: Iterator[Clip]
) -> Iterator[tuple[str, dict[str, bytes]]]:
    """One .npz per clip: its captions' features, in their order, trimmed to real tokens."""
    # A clip that nothing is said of gets the empty text, which stands for "no condition".
    captions = {clip.fields["id"]: clip.fields["captions"] or [""] for clip in clips}
    distinct = list(dict.fromkeys(text for texts in captions.values() for text in texts))
    encoded: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    # Sorted by length: a batch then has little padding to compute.
    for batch in _batches(sorted(distinct, key=lambda text: (len(text), text))):
        encoded.update(zip(batch, _trimmed(encoder(batch)), strict=True))
    for clip_id, texts in captions.items():
        yield clip_id, {"npz": _npz([encoded[text] for text in texts])}


def _trimmed(batch: TextFeatures) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(features [S, D], pooled [D]) of each text, float16."""
    for features, mask, pooled in zip(batch.features, batch.mask, batch.pooled, strict=True):
        yield features[mask].half().numpy(), pooled.half().numpy()


def _npz(texts: list[tuple[np.ndarray, np.ndarray]]) -> bytes:
    """features [sum of S, D], lengths [captions], pooled [captions, D]."""
    buffer = io.BytesIO()
    np.savez(
        buffer,
        features=np.concatenate([features for features, _ in texts]),
        lengths=np.array([len(features) for features, _ in texts], dtype=np.int64),
        pooled=np.stack([pooled for _, pooled in texts]),
    )
    return buffer.getvalue()


def _batches(texts: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(texts), _BATCH):
        yield texts[start : start + _BATCH]
