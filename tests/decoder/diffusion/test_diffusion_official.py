"""The published chain against numbers of the published code."""

from pathlib import Path

import numpy as np
import pytest
import torch

from diffsound.decoder.diffusion.official import (
    official_log_x0,
    official_posterior,
    official_schedule,
    official_timesteps,
)
from diffsound.decoder.diffusion.samplers import official


@pytest.fixture(scope="module")
def published():
    with np.load(Path(__file__).parent / "golden" / "published_chain.npz") as file:
        return dict(file)


def test_schedule_equals_the_published_one(published):
    schedule = official_schedule()
    stay, uniform, masked = schedule.cumulative(torch.arange(1, 101))
    # Ours divides the uniform share by K, the published code by K + 1.
    for ours, theirs in ((stay, "att"), (uniform * 256 / 257, "btt"), (masked, "ctt")):
        np.testing.assert_allclose(ours, published[theirs][:100], rtol=1e-9)
    one_step = schedule.between(torch.arange(1, 101), torch.arange(100))
    for ours, theirs in ((0, "at"), (1, "bt"), (2, "ct")):
        factor = 256 / 257 if theirs == "bt" else 1
        np.testing.assert_allclose(one_step[ours] * factor, published[theirs], rtol=1e-6)


def test_posterior_equals_the_published_one(published):
    log_p = torch.tensor(published["log_p_x0"]).movedim(1, -1)
    xt, t = torch.tensor(published["xt"]), torch.tensor(published["t"]) + 1
    assert set(t.tolist()) == {1, 2, 51, 100}
    assert 0 < (xt == 256).float().mean() < 1
    ours = official_posterior(log_p, xt, t, official_schedule())
    assert ours.dtype == torch.float32
    np.testing.assert_allclose(ours.movedim(-1, 1), published["posterior"], rtol=0, atol=1e-4)


def test_without_truncation_an_unlikely_token_keeps_its_probability():
    log_p = official_log_x0(torch.tensor([0.0, -30.0]))
    torch.testing.assert_close(log_p, torch.tensor([0.0, -30.0, -70.0]))


def test_x0_prediction_has_the_published_floor_and_truncation():
    probs = torch.tensor([0.5, 0.3, 0.15, 0.05])
    full = official_log_x0(probs.log())
    torch.testing.assert_close(full.exp()[:4], probs)
    assert float(full[4]) == -70
    cut = official_log_x0(probs.log(), 0.6)
    torch.testing.assert_close(cut[:2], full[:2])  # not renormalised
    assert cut[2:].tolist() == [-70, -70, -70]
    assert float(official_log_x0(torch.tensor([0.0, -200.0]))[1]) == -70


@pytest.mark.parametrize(("stride", "evaluations"), [(1, 100), (3, 34), (7, 16)])
def test_strides_cost_what_they_cost_in_the_published_code(stride, evaluations):
    times = official_timesteps(100, stride)
    assert len(times) == evaluations
    assert times[-1] == (1, 1)
    for t, t_posterior in times:
        assert t_posterior == (t - (stride - 1) if t > stride else t)


def test_chain_runs_from_all_masks_to_codes_the_network_believes_in():
    schedule, size = official_schedule(20, 8), 8
    logits = torch.full((2, 5, size), -30.0)
    logits[..., 3] = 5.0
    seen = []

    def predict(tokens, t):
        seen.append(t)
        return logits

    generators = [torch.Generator().manual_seed(seed) for seed in (0, 1)]
    tokens = official(predict, schedule, torch.full((2, 5), size), generators, stride=6)
    assert seen == [20, 14, 8, 2, 1]
    assert (tokens == 3).all()
    seen.clear()
    official(predict, schedule, tokens, generators, start_step=4)
    assert seen == [4, 3, 2, 1]


def test_misuse_is_refused():
    for start, stride in ((0, 1), (5, 0)):
        with pytest.raises(ValueError, match="at least 1"):
            official_timesteps(start, stride)
