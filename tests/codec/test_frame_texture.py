"""Texture drawn from a learned distribution, frame by frame."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from diffsound.codec import Codec, CodecConfig, QuantizerConfig
from diffsound.codec.config import FrameTextureConfig, LinearConfig
from diffsound.codec.frame_texture import UNIT, FrameTexture, TextureNoise, _bend, _straighten

BANDS, ROWS = 6, 3
CONFIG = FrameTextureConfig(
    patch=2, width=16, layers=1, kernel=3, hidden=12, past=2, mixtures=2, rank=2, fewest_rows=2
)
# With everything that it may have besides.
FULL = CONFIG.model_copy(update={"memory": (4, 9), "skewed": True, "text_dim": 5})


def make(seed: int = 0, config: FrameTextureConfig = CONFIG) -> FrameTexture:
    """A texture with weights large enough that every part matters."""
    torch.manual_seed(seed)
    texture = FrameTexture(config, BANDS, ROWS).eval()
    with torch.no_grad():
        texture.gaussians.normal_(std=0.2)
        for layer in (texture.memory, texture.text):
            if layer is not None:
                layer.weight.normal_(std=0.5)
        texture.rate.weight.normal_(std=0.5)
        texture.weights.weight.normal_(std=0.5)
    return texture


def some_mels(clips: int, frames: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mels, their means and numbers of rows."""
    generator = torch.Generator().manual_seed(1)
    mean = torch.rand(clips, BANDS, frames, generator=generator)
    mel = mean + UNIT * torch.randn(clips, BANDS, frames, generator=generator)
    return mel, mean, torch.full((clips,), ROWS)


def slow_log_prob(texture: FrameTexture, mel: Tensor, mean: Tensor, rows: Tensor) -> Tensor:
    """One frame at a time, with whole covariance matrices; no dither."""
    context = texture.context(mean, rows)
    deviation = ((mel - mean) / UNIT).transpose(1, 2)
    result = torch.zeros(deviation.shape[:2])
    for clip in range(len(mel)):
        for t in range(deviation.shape[1]):
            before = [
                deviation[clip, t - back] if t >= back else torch.zeros(BANDS)
                for back in range(CONFIG.past, 0, -1)
            ]
            hidden = texture._hidden(context[clip, t], torch.cat(before))
            weights = texture.weights(hidden).softmax(0)
            density = torch.zeros(())
            for m in range(CONFIG.mixtures):
                numbers = hidden @ texture.gaussians[m] + texture.bias[m]
                loc, log_spread = numbers[:BANDS], numbers[BANDS : 2 * BANDS].clamp(-4, 3)
                factor = numbers[2 * BANDS :].view(BANDS, CONFIG.rank)
                covariance = factor @ factor.T + torch.diag((2 * log_spread).exp())
                gaussian = MultivariateNormal(loc, covariance)
                density = density + weights[m] * gaussian.log_prob(deviation[clip, t]).exp()
            result[clip, t] = density.log() / BANDS
    return result


def test_log_prob_equals_whole_covariance_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffsound.codec.frame_texture._DITHER", 0.0)
    texture, (mel, mean, rows) = make(), some_mels(2, 7)
    with torch.no_grad():
        fast, slow = texture.log_prob(mel, mean, rows), slow_log_prob(texture, mel, mean, rows)
    torch.testing.assert_close(fast, slow, atol=1e-4, rtol=1e-4)


def test_states_for_all_frames_at_once_equal_remembering_one_by_one() -> None:
    texture, frames = make(config=FULL), torch.randn(2, 20, BANDS)
    at_once, state = texture._states(frames), torch.zeros(2, texture.state_size)
    for t in range(20):
        torch.testing.assert_close(at_once[:, t], state)
        state = texture.remember(state, frames[:, t])


def test_memory_keeps_the_mean_deviation_of_each_band() -> None:
    """After many frames of one deviation, the decayed sum over their decayed number is it."""
    texture = make(config=FULL)
    frame = torch.tensor([[1.0, -2.0, 0.5, 0.0, 3.0, -1.0]])
    state = torch.zeros(1, texture.state_size)
    for _ in range(5):
        state = texture.remember(state, frame)
    for sums in state[:, FULL.past * BANDS :].unflatten(1, (2, -1)).unbind(1):
        torch.testing.assert_close(sums[:, :BANDS] / sums[:, -1:], frame)
        torch.testing.assert_close(sums[:, BANDS:-1] / sums[:, -1:], frame.abs())


def test_bending_is_undone_and_its_slope_is_the_derivative() -> None:
    x = 3 * torch.randn(200, dtype=torch.float64)
    skew = torch.linspace(-0.9, 0.9, 200, dtype=torch.float64)
    x.requires_grad_()
    y = _bend(x, skew)
    (derivative,) = torch.autograd.grad(y.sum(), x)
    back, slope = _straighten(y.detach(), skew)
    torch.testing.assert_close(back, x.detach())
    torch.testing.assert_close(slope, 1 / derivative)


def test_a_skewed_density_integrates_to_one_and_strays_farther_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("diffsound.codec.frame_texture._DITHER", 0.0)
    torch.manual_seed(0)
    texture = FrameTexture(FULL, 1, ROWS).eval()
    with torch.no_grad():
        texture.bias[:, -1] = 1.0
        grid = torch.linspace(-30, 30, 6001)
        mel = (0.5 + UNIT * grid)[:, None, None]
        mean, rows = torch.full_like(mel, 0.5), torch.full((len(grid),), ROWS)
        density = texture.log_prob(mel, mean, rows)[:, 0].exp()
        drawn = texture.draw(torch.full((20_000, 1, 1), 0.5), ROWS).flatten()
    assert torch.trapezoid(density, grid).item() == pytest.approx(1, abs=1e-3)
    expected = torch.trapezoid(density * grid, grid).item()
    deviation = (drawn - 0.5) / UNIT
    assert deviation.mean().item() == pytest.approx(expected, abs=0.05)
    centred = deviation - deviation.mean()
    assert (centred**3).mean() / centred.std() ** 3 < -0.5


@torch.no_grad()
def test_a_text_changes_the_texture_and_guidance_exaggerates_it() -> None:
    texture, (_, mean, rows) = make(config=FULL), some_mels(1, 9)
    text = torch.randn(1, 5)
    plain, told = texture.context(mean, rows), texture.context(mean, rows, text)
    torch.testing.assert_close(texture.context(mean, rows, torch.zeros(1, 5)), plain)
    assert not torch.allclose(told, plain)
    torch.testing.assert_close(texture.guided(mean, rows, text), told)
    texture.config = FULL.model_copy(update={"guidance": 3.0})
    torch.testing.assert_close(texture.guided(mean, rows, text), plain + 3 * (told - plain))
    torch.testing.assert_close(texture.guided(mean, rows, None), plain)


def test_a_frame_depends_on_frames_before_it_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffsound.codec.frame_texture._DITHER", 0.0)
    texture, (mel, mean, rows) = make(), some_mels(1, 10)
    changed = mel.clone()
    changed[:, :, 6] += 0.1
    with torch.no_grad():
        before, after = (texture.log_prob(one, mean, rows)[0] for one in (mel, changed))
    same = (before == after).tolist()
    # A frame matters to itself and to the `past` frames that see it.
    assert same == [True] * 6 + [False] * (1 + CONFIG.past) + [True]


def test_draws_have_the_mean_and_covariance_of_the_density() -> None:
    texture, (_, mean, rows) = make(), some_mels(1, 1)
    generator = torch.Generator().manual_seed(3)
    draws = texture.draw(mean.expand(20_000, -1, -1), ROWS, generator)[..., 0]
    draws = (draws - mean[0, :, 0]) / UNIT
    with torch.no_grad():
        hidden = texture._hidden(texture.context(mean, rows)[0, 0], torch.zeros(2 * BANDS))
        weights = texture.weights(hidden).softmax(0)
        numbers = torch.einsum("h,mhn->mn", hidden, texture.gaussians) + texture.bias
    locs, spreads = numbers[:, :BANDS], numbers[:, BANDS : 2 * BANDS].clamp(-4, 3)
    factors = numbers[:, 2 * BANDS :].view(-1, BANDS, CONFIG.rank)
    expected = weights @ locs
    second = factors @ factors.transpose(1, 2) + torch.diag_embed((2 * spreads).exp())
    second = second + locs[:, :, None] * locs[:, None, :]
    covariance = torch.einsum("m,mij->ij", weights, second) - torch.outer(expected, expected)
    torch.testing.assert_close(draws.mean(0), expected, atol=0.05, rtol=0.05)
    torch.testing.assert_close(draws.T.cov(), covariance, atol=0.12, rtol=0.05)


@torch.no_grad()
def test_drawing_equals_frame_after_frame_from_states() -> None:
    texture, (_, mean, rows) = make(config=FULL), some_mels(2, 9)
    text = torch.randn(2, 5)
    drawn = texture.draw(mean, ROWS, torch.Generator().manual_seed(4), text)
    generator = torch.Generator().manual_seed(4)
    noises = [texture.noise(9, generator) for _ in range(2)]
    own, shared, gumbel = (torch.stack(parts) for parts in zip(*noises, strict=True))
    context, state = texture.guided(mean, rows, text), torch.zeros(2, texture.state_size)
    for t in range(9):
        noise = TextureNoise(own[:, t], shared[:, t], gumbel[:, t])
        frame = texture.next_frame(context[:, t], state, noise)
        torch.testing.assert_close(drawn[..., t], mean[..., t] + UNIT * frame)
        state = texture.remember(state, frame)


def test_a_seed_means_one_texture() -> None:
    texture, (_, mean, _) = make(), some_mels(2, 9)
    first, second, other = (
        texture.draw(mean, ROWS, torch.Generator().manual_seed(seed)) for seed in (4, 4, 5)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert first.shape == mean.shape


def test_training_learns_how_the_texture_moves() -> None:
    """Noise in which all bands rise and fall together, slowly: draws do the same."""
    torch.manual_seed(0)
    texture = FrameTexture(CONFIG, BANDS, ROWS)
    optimizer = torch.optim.Adam(texture.parameters(), lr=5e-3)
    mean, rows = torch.full((16, BANDS, 32), 0.5), torch.full((16,), ROWS)

    def recorded(clips: int) -> Tensor:
        common = torch.zeros(clips, 1, 32)
        steps = torch.randn(clips, 1, 32)
        for t in range(1, 32):
            common[..., t] = 0.9 * common[..., t - 1] + 0.44 * steps[..., t]
        return 0.5 + UNIT * (common + 0.2 * torch.randn(clips, BANDS, 32))

    for _ in range(250):
        loss = -texture.log_prob(recorded(16), mean, rows).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    drawn = texture.eval().draw(mean.expand(-1, -1, -1), ROWS, torch.Generator().manual_seed(1))
    moves = (drawn - 0.5)[..., 8:] / UNIT
    bands = moves.transpose(0, 1).flatten(1).corrcoef()
    frames = torch.stack([moves[..., :-1].flatten(), moves[..., 1:].flatten()]).corrcoef()[0, 1]
    assert bands[0, 1:].min() > 0.7  # 0.95 when recorded, 0 for independent noise
    assert frames > 0.6  # 0.85 when recorded
    assert 0.4 < moves.std() < 2  # 1 when recorded


def make_codec() -> Codec:
    torch.manual_seed(0)
    config = CodecConfig(
        n_mels=BANDS,
        backbone=LinearConfig(time_stride=4, latent=5),
        quantizer=QuantizerConfig(
            layout="residual", rows=ROWS, codebook_size=8, code_dim=5, update="ema"
        ),
        texture=CONFIG,
    )
    return Codec(config)


def test_decoding_draws_texture_around_the_sketch() -> None:
    codec = make_codec().eval()
    tokens = torch.randint(8, (1, ROWS, 6), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        average = codec.sketch(tokens)
        drawn = codec.decode(tokens, torch.Generator().manual_seed(1))
        again = codec.decode(tokens, torch.Generator().manual_seed(1))
        other = codec.decode(tokens, torch.Generator().manual_seed(2))
    assert torch.equal(drawn, again)
    assert not torch.equal(drawn, other)
    assert drawn.shape == average.shape == (1, BANDS, 24)
    assert 0 < (drawn - average).abs().mean() < 10 * UNIT


def test_training_draws_the_number_of_rows_and_evaluation_uses_all() -> None:
    codec, mel = make_codec(), torch.rand(8, BANDS, 16)
    codec.eval()
    with torch.no_grad():
        fixed = [codec(mel, torch.Generator().manual_seed(seed)).log_prob for seed in (0, 0)]
    assert fixed[0] is not None
    assert torch.equal(fixed[0], fixed[1])
    codec.freeze_tokens()
    codec.train()
    made = codec(mel, torch.Generator().manual_seed(0))
    (-made.log_prob.mean()).backward()
    trained = {name for name, p in codec.named_parameters() if p.grad is not None}
    assert trained
    assert all(name.startswith("texture.") for name in trained)


@torch.no_grad()
def test_items_are_drawn_one_after_another_from_the_generator() -> None:
    """In a batch an item has the noise that it would have after the items before it."""
    texture, (_, mean, _) = make(), some_mels(3, 9)
    together = texture.draw(mean, ROWS, torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(3)
    alone = torch.cat([texture.draw(one, ROWS, generator) for one in mean.split(1)])
    torch.testing.assert_close(together, alone)


def test_texture_does_not_change_the_name_of_the_tokens() -> None:
    assert not any(name.startswith("texture.") for name in make_codec().token_state())
