"""Long mels vocoded in pieces."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diffsound.audio.mel import MelConfig
from diffsound.vocoder import LONGEST, SHORTEST, ISTFTConfig, build_vocoder, cut, vocode_pieces
from diffsound.vocoder.istft import ISTFTVocoder

MEL = MelConfig.full_band(n_fft=64, hop_length=16, n_mels=10)


def vocoder(rounds: int, fits: int = 1) -> ISTFTVocoder:
    torch.manual_seed(0)
    made = build_vocoder(ISTFTConfig(width=16, layers=2, rounds=rounds, fits=fits), MEL).eval()
    assert isinstance(made, ISTFTVocoder)
    return made


@given(st.integers(1, 4000), st.integers(0, 80))
def test_pieces_cover_the_mel_once(frames: int, reach: int) -> None:
    pieces = cut(frames, reach)
    assert [piece.start for piece in pieces] == [0, *(piece.end for piece in pieces[:-1])]
    assert pieces[-1].end == frames
    assert len(pieces) == 1 or len(pieces) % 2 == 0
    assert (len(pieces) == 1) == (frames < 2 * SHORTEST)
    for piece in pieces:
        assert piece.end - piece.start <= LONGEST
        assert piece.first == max(0, piece.start - reach)
        assert piece.last == min(frames, piece.end + reach)


@pytest.mark.parametrize("rounds", [0, 1, 4])
@pytest.mark.parametrize("frames", [2 * SHORTEST, 2 * LONGEST + 1])
@torch.inference_mode()
def test_there_is_no_seam(rounds: int, frames: int) -> None:
    made = vocoder(rounds)
    mel = torch.rand(1, 10, frames, generator=torch.Generator().manual_seed(1))
    assert made.reach is not None
    mels = [mel, mel.flip(2)]
    made_of = vocode_pieces(mels, made.reach, 16, lambda parts: [made(part) for part in parts])
    for pieced, whole in zip(made_of, map(made, mels), strict=True):
        assert pieced.shape == whole.shape
        torch.testing.assert_close(pieced, whole, rtol=0, atol=3e-5 * float(whole.abs().max()))


@pytest.mark.parametrize("rounds", [0, 2])
@torch.inference_mode()
def test_reach_is_as_far_as_it_hears(rounds: int) -> None:
    """Nothing further away changes a sample, and what is nearly that far does."""
    made = vocoder(rounds)
    mel = torch.rand(1, 10, 200, generator=torch.Generator().manual_seed(1))
    reach, place = made.reach, 100
    assert reach is not None
    changed = mel.clone()
    changed[:, :, place] = 0.0
    difference = (made(changed) - made(mel)).abs()[0].unflatten(0, (200, 16)).amax(1)
    heard = difference.nonzero().flatten()
    assert place - int(heard.min()) <= reach
    assert int(heard.max()) - place <= reach
    # A window's outermost samples are zero, and are counted at every transform.
    assert place - int(heard.min()) >= reach - 2 * (rounds + 1)
