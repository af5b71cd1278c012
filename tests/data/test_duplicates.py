import io

import numpy as np
import pytest
import soundfile
import torch

from diffsound.audio.mel import MelConfig, MelFrontEnd
from diffsound.data.duplicates import (
    DETAIL,
    MOVEMENT,
    near_duplicates,
    pack_fingerprint,
    sound_fingerprint,
    unpack_fingerprint,
)

RATE = 22050
FRONT_END = MelFrontEnd(MelConfig())


def fingerprint(wave: np.ndarray) -> np.ndarray:
    return sound_fingerprint(FRONT_END(torch.from_numpy(wave.astype(np.float32))[None])[0].numpy())


def texture(seed: int, seconds: float = 2.0, steady: bool = False) -> np.ndarray:
    """Noise whose bands swell each in their own way, or (steady) like rain."""
    rng = np.random.default_rng(seed)
    count = round(seconds * RATE)
    spectrum = np.fft.rfft(rng.standard_normal(count))
    places = np.arange(len(spectrum))
    wave = np.zeros(count)
    for band in range(4):
        inside = (places * 8 // len(spectrum)) == band
        swell = np.interp(np.arange(count), np.linspace(0, count, 9), rng.uniform(0.05, 1, 9))
        wave += np.fft.irfft(spectrum * inside, count) * (1 if steady else swell)
    return 0.5 * wave / np.abs(wave).max()


def copied(wave: np.ndarray) -> np.ndarray:
    """Quieter, and through Ogg Vorbis."""
    buffer = io.BytesIO()
    soundfile.write(buffer, 0.6 * wave, RATE, format="OGG", subtype="VORBIS")
    buffer.seek(0)
    return soundfile.read(buffer)[0]


@pytest.mark.parametrize("steady", [False, True])
def test_copies_are_found_and_similar_sounds_are_not(steady: bool) -> None:
    waves = [texture(seed, steady=steady) for seed in range(6)]
    waves += [copied(waves[1]), copied(waves[4])]
    ids = [f"clip{i}" for i in range(8)]
    groups = near_duplicates(ids, np.stack([fingerprint(w) for w in waves]), [2.0] * 8)
    assert [group.ids for group in groups] == [("clip1", "clip6"), ("clip4", "clip7")]
    assert all(group.correlation > DETAIL for group in groups)


def test_clips_of_different_lengths_are_not_duplicates() -> None:
    print_ = fingerprint(texture(0))
    assert near_duplicates(["a", "b"], np.stack([print_, print_]), [2.0, 2.03])
    assert not near_duplicates(["a", "b"], np.stack([print_, print_]), [2.0, 2.1])
    assert near_duplicates(["a"], print_[None], [2.0]) == []


def test_hashing_finds_what_comparing_all_pairs_finds() -> None:
    rng = np.random.default_rng(0)
    base = rng.standard_normal((300, 256))
    near = base[:60] + 0.25 * rng.standard_normal((60, 256))
    vectors = np.rint(30 * np.concatenate([base, near])).clip(-127, 127).astype(np.int8)
    grid = vectors.astype(float).reshape(-1, 16, 16)
    detail = (grid - grid.mean(axis=1, keepdims=True)).reshape(len(grid), -1)
    moves, details = np.corrcoef(vectors), np.corrcoef(detail)
    expected = {
        (i, j)
        for i, j in zip(*np.nonzero((moves > MOVEMENT) & (details > DETAIL)), strict=True)
        if i < j
    }
    assert len(expected) == 60
    ids = [str(i) for i in range(len(vectors))]
    groups = near_duplicates(ids, vectors, [1.0] * len(ids))
    found = {(int(group.ids[0]), int(group.ids[1])) for group in groups}
    assert found <= expected
    assert len(found) >= 0.95 * len(expected)


def test_steady_and_silent_sounds_have_fingerprints() -> None:
    tone = np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE) * 0.3
    assert np.abs(fingerprint(tone)).max() == 127
    assert sound_fingerprint(np.zeros((80, 5))).shape == (256,)


def test_packed_fingerprints_unpack_to_the_same_numbers() -> None:
    vector = np.arange(-128, 128).astype(np.int8)
    assert (unpack_fingerprint(pack_fingerprint(vector)) == vector).all()
