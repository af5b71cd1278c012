"""Tokens and text features stored beside the clips."""

import functools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diffsound.audio.mel import MelConfig, MelFrontEnd
from diffsound.codec.codec import Codec
from diffsound.codec.config import CodecConfig
from diffsound.data.clip import PrepareSettings
from diffsound.data.derived import (
    TokenizeSettings,
    aligned,
    clip_tokens,
    encode_text,
    speeds,
    text_entries,
    tokenize,
)
from diffsound.data.engines import ProcessEngine
from diffsound.data.prepare import prepare
from diffsound.data.shards import NO_TOKEN, PreparedData
from diffsound.data.sources import open_source
from diffsound.errors import DataError
from diffsound.model.bundle import load_codec
from diffsound.text.encoders import load_text_encoder
from diffsound.text.features import TextEncoder, TextEncoderConfig


def random_codec(mel: MelConfig, name: str = "random") -> tuple[Codec, MelConfig, str]:
    """A codec with seeded weights, as a bundle's loader gives it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Codec(CodecConfig.tiny(mel.n_mels)).eval(), mel, name


def read_all(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_stored_tokens_equal_the_codecs(prepared: PreparedData) -> None:
    mel = prepared.index.mel
    index = tokenize(prepared.folder, functools.partial(random_codec, mel))
    codec, _, _ = random_codec(mel)
    assert (index.rows, index.codebook_size, index.time_stride) == (4, 16, codec.time_stride)
    tokens = prepared.tokens()
    tokens.verify()
    column = mel.hop_length * codec.time_stride
    for i in range(len(prepared)):
        grid = tokens.of(i)
        wave = prepared.wave(i)
        columns = math.ceil(len(wave) / column)
        assert grid.dtype == np.uint16
        assert grid.shape == (1, 4, columns)
        padded = np.pad(wave, (0, columns * column - len(wave)))
        frames = MelFrontEnd(mel)(torch.from_numpy(padded)[None])[
            ..., : columns * codec.time_stride
        ]
        assert (grid == codec.encode(frames).numpy()).all()


def test_processes_and_reruns_give_the_same_tokens(
    sounds: Path, tmp_path: Path, tiny_folder: Path
) -> None:
    folder = tmp_path / "prepared"
    prepare(open_source(str(sounds)), folder, PrepareSettings(clips_per_shard=3))
    prepared = PreparedData.open(folder)
    load = functools.partial(load_codec, tiny_folder)
    settings = TokenizeSettings(variants=2, seconds=0.5)
    fingerprint = tokenize(folder, load, settings).fingerprint
    out = folder / "tokens" / fingerprint
    before = read_all(out)
    assert prepared.tokens(fingerprint).of(0).shape[0] == 2
    assert len({prepared.tokens().of(i).shape for i in range(7)}) == 1
    (out / "tokens-000001.tar").unlink()
    (out / "tokens-000002.tar").write_bytes(b"cut")
    tokenize(folder, load, settings, ProcessEngine(1))
    assert read_all(out) == before
    with pytest.raises(DataError, match="variants=2, now variants=3"):
        tokenize(folder, load, TokenizeSettings(variants=3, seconds=0.5))


def test_tokens_of_several_codecs_are_kept_apart(prepared: PreparedData) -> None:
    for name in ("one", "two"):
        tokenize(prepared.folder, functools.partial(random_codec, prepared.index.mel, name))
    assert prepared.tokens("two").info.fingerprint == "two"
    with pytest.raises(DataError, match="choose one of one, two"):
        prepared.tokens()
    with pytest.raises(DataError, match="'three' is not among one, two"):
        prepared.tokens("three")


def test_a_codec_of_another_rate_is_refused(prepared: PreparedData) -> None:
    with pytest.raises(DataError, match=r"works at 22050 Hz, .* prepared at 8000 Hz"):
        tokenize(prepared.folder, functools.partial(random_codec, MelConfig()))


@given(st.integers(1, 400), st.integers(1, 6), st.integers(4, 60), st.none() | st.integers(1, 400))
def test_alignments_are_spread_over_a_column(
    length: int, variants: int, column: int, samples: int | None
) -> None:
    wave = np.arange(1, length + 1, dtype=np.float32)
    waves = aligned(wave, variants, column, samples)
    assert len(waves) == variants
    if samples is not None:
        assert waves.shape[1] == samples
    if samples is not None and length > samples:
        for crop in waves:  # whole, unbroken pieces of the wave
            assert (np.diff(crop) == 1).all()
        if variants > 1:
            assert waves[0][0] == 1
            assert waves[-1][-1] == length
        return
    for v, shifted in enumerate(waves):
        delay = v * column // variants
        expected = np.zeros(max(waves.shape[1], delay + length), np.float32)
        expected[delay : delay + length] = wave
        assert (shifted == expected[: waves.shape[1]]).all()
    if samples is None:
        assert (waves.max(axis=1) == length).all()  # nothing of the sound is lost


def test_variants_are_delayed_by_parts_of_a_column(prepared: PreparedData) -> None:
    codec, mel, _ = random_codec(prepared.index.mel)
    settings = TokenizeSettings(variants=4, seconds=1.0)
    tokens = clip_tokens(prepared.wave(0), codec, MelFrontEnd(mel), settings)
    assert len({grid.tobytes() for grid in tokens}) == 4


@given(st.integers(2, 64), st.floats(0.01, 0.5))
def test_speeds_are_spread_over_the_range(variants: int, limit: float) -> None:
    factors = speeds(variants, limit)
    assert factors[0] == 1.0
    assert len(set(factors)) == variants
    assert all(1 / (1 + limit) <= factor <= 1 + limit for factor in factors)
    if variants > 8:  # faster and slower ones, about as many
        faster = sum(factor > 1 for factor in factors[1:]) / (variants - 1)
        assert 0.3 < faster < 0.7


def test_shorter_variants_are_filled_with_no_token(prepared: PreparedData) -> None:
    codec, mel, _ = random_codec(prepared.index.mel)
    settings = TokenizeSettings(variants=6, speed=0.25)
    wave, front_end = prepared.wave(0), MelFrontEnd(mel)
    tokens = clip_tokens(wave, codec, front_end, settings)
    column = mel.hop_length * codec.time_stride
    alone = clip_tokens(wave, codec, front_end, TokenizeSettings())[0]
    assert (
        tokens[0, :, alone.shape[1] :].tolist()
        == [[NO_TOKEN] * (tokens.shape[2] - alone.shape[1])] * 4
    )
    inner = alone.shape[1] - 4  # what follows the end is heard a little before it
    assert (tokens[0, :, :inner] == alone[:, :inner]).all()
    for variant, factor in enumerate(speeds(6, 0.25)):
        samples = variant * column // 6 + len(wave) / factor
        filled = (tokens[variant] != NO_TOKEN).all(0)
        assert abs(filled.sum() - math.ceil(samples / column)) <= 1
        assert filled[: filled.sum()].all()  # the gap is at the end


def test_speed_without_variants_is_refused() -> None:
    with pytest.raises(ValueError, match="2 or more"):
        TokenizeSettings(speed=0.1)


@pytest.fixture(scope="module")
def encoder() -> TextEncoder:
    return load_text_encoder(TextEncoderConfig())


def test_stored_text_features_equal_the_encoders(
    prepared: PreparedData, encoder: TextEncoder
) -> None:
    config = TextEncoderConfig().model_dump(mode="json")
    index = encode_text(prepared.folder, lambda: encoder, config)
    assert index.dim == encoder.dim
    assert TextEncoderConfig.model_validate(index.encoder) == TextEncoderConfig()
    stored = prepared.text(encoder.fingerprint)
    stored.verify()
    for i in (0, 6):
        captions = prepared.records[i].captions
        found, expected = stored.of(i), encoder(captions)
        assert len(found) == len(captions)
        assert (found.mask == expected.mask).all()
        torch.testing.assert_close(found.features, expected.features, atol=4e-3, rtol=2e-3)
        torch.testing.assert_close(found.pooled, expected.pooled, atol=1e-3, rtol=2e-3)
    before = read_all(stored.folder)
    (stored.folder / "text-000000.tar").unlink()
    encode_text(prepared.folder, lambda: encoder, config)
    assert read_all(stored.folder) == before


def test_a_clip_without_captions_gets_the_empty_text(encoder: TextEncoder) -> None:
    clips = [({"id": "mute", "captions": []}, b""), ({"id": "b", "captions": ["x"]}, b"")]
    entries = dict(text_entries(encoder, {}, iter(clips)))
    told = dict(text_entries(encoder, {}, iter([({"id": "e", "captions": [""]}, b"")])))
    assert entries["mute"] == told["e"]
    assert entries["b"] != told["e"]
