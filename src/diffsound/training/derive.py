"""Tokens and text features a decoder learns from: found in the data, or made first."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from diffsound.data.encode_text import encode_text
from diffsound.data.engines import available_cores, make_engine
from diffsound.data.index import TextIndex, TokensIndex, read_index
from diffsound.data.shards import PreparedData
from diffsound.data.tokenize import TokenizeSettings, tokenize
from diffsound.errors import DataError
from diffsound.text.config import TextEncoderConfig
from diffsound.text.encoders import load_text_encoder
from diffsound.training.frozen import load_codec


def tokens_of(
    data: PreparedData, codec: str | None, wanted: str | None, how: TokenizeSettings
) -> TokensIndex:
    """The index of the data's tokens; made now if a codec is given and they are not there.

    codec: a run or bundle. wanted: the fingerprint the tokens must have.
    """
    if codec is None:
        return data.tokens(wanted).info
    _, _, fingerprint = load_codec(codec)
    if wanted is not None and wanted != fingerprint:
        raise DataError(
            f"the run's tokens are those of codec {wanted}, {codec} is {fingerprint}; "
            "give the same codec or start another run"
        )
    found = read_index(TokensIndex, data.folder / "tokens" / fingerprint)
    if found is not None and found.complete:
        return found
    _say(f"making tokens of {len(data)} clips of {data.folder} with the codec in {codec}")
    load = functools.partial(load_codec, str(Path(codec).absolute()))
    workers = min(available_cores(), len(data.index.shards))
    return tokenize(data.folder, load, how, make_engine("processes", workers))


def text_of(data: PreparedData, encoder: TextEncoderConfig | None, wanted: str | None) -> TextIndex:
    """The index of the data's text features; made now if an encoder is given."""
    if encoder is None:
        return data.text(wanted).info
    fingerprint = load_text_encoder(encoder).fingerprint
    check_encoder(fingerprint, wanted)
    found = read_index(TextIndex, data.folder / "text" / fingerprint)
    if found is not None and found.complete:
        return found
    _say(f"encoding the captions of {len(data)} clips of {data.folder}")
    load = functools.partial(load_text_encoder, encoder)
    return encode_text(data.folder, load, encoder.model_dump(mode="json"), make_engine("serial"))


def check_encoder(found: str, wanted: str | None) -> None:
    """Refuse text features of one encoder for a run that learns from another's."""
    if wanted is not None and wanted != found:
        raise DataError(
            f"the run's text features are those of encoder {wanted}, this one is {found}; "
            "give the same encoder or start another run"
        )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
