"""Schedules, forward process and posterior against explicit matrices and enumerated Bayes."""

import math

import numpy as np
import pytest
import torch

from diffsound.decoder.diffusion.official import official_schedule
from diffsound.decoder.diffusion.process import (
    Schedule,
    linear_schedule,
    log_reverse_probs,
    posterior,
    q_xt_given_x0,
    q_xt_given_xs,
    quarter_schedule,
    reverse_probs,
    sample_stationary,
    sample_xt,
)

KINDS = ("uniform", "mask", "mask_uniform")
F64 = torch.float64


def all_pairs(steps):
    """Every s < t, as tensors of times t and s."""
    pairs = [(t, s) for t in range(1, steps + 1) for s in range(t)]
    return torch.tensor(pairs).unbind(1)


def stacked(function, t, s):
    """An explicit table for each pair of times."""
    return np.stack(
        [function(int(later), int(earlier)) for later, earlier in zip(t, s, strict=True)]
    )


def test_transitions_equal_products_of_explicit_matrices(explicit_forms):
    for form in explicit_forms:
        t, s = all_pairs(form.schedule.steps)
        expected = stacked(form.between, t, s).swapaxes(1, 2)
        states = torch.arange(form.schedule.codebook_size + 1).expand(len(t), -1)
        ours = q_xt_given_xs(states, t, s, form.schedule, F64)
        np.testing.assert_allclose(ours, expected, atol=1e-12)
        clean = q_xt_given_x0(states[:, :-1], t, form.schedule, F64)
        from_clean = (s == 0).numpy()
        np.testing.assert_allclose(
            clean.numpy()[from_clean], expected[from_clean][:, :-1], atol=1e-12
        )


def test_stationary_distribution_is_the_end_of_the_chain(explicit_forms):
    for form in explicit_forms:
        end = form.between(form.schedule.steps, 0)
        for x0 in range(form.schedule.codebook_size):
            np.testing.assert_allclose(form.schedule.stationary(), end[:, x0], atol=1e-12)


def test_posterior_equals_enumerated_bayes(explicit_forms):
    for form in explicit_forms:
        size = form.schedule.codebook_size
        t, s = all_pairs(form.schedule.steps)
        x0, xt = torch.meshgrid(torch.arange(size), torch.arange(size + 1), indexing="ij")
        x0, xt = x0.expand(len(t), -1, -1), xt.expand(len(t), -1, -1)
        ours = posterior(x0, xt, t, s, form.schedule, F64).numpy()
        expected = stacked(form.posterior, t, s)
        possible = np.isfinite(expected).all(-1)
        assert possible.any((1, 2)).all()
        np.testing.assert_allclose(ours[possible], expected[possible], atol=1e-9)
        np.testing.assert_allclose(ours.sum(-1), 1, atol=1e-9)
        assert (ours >= 0).all()


def test_reverse_step_equals_the_sum_over_x0(explicit_forms):
    generator = torch.Generator().manual_seed(0)
    for form in explicit_forms:
        schedule, size = form.schedule, form.schedule.codebook_size
        t, s = all_pairs(schedule.steps)
        xt = torch.arange(size + 1).expand(len(t), -1)
        p = torch.rand(len(t), size + 1, size, generator=generator, dtype=F64)
        p = p / p.sum(-1, keepdim=True)
        expected = np.einsum("nits,nti->nts", stacked(form.posterior, t, s), p.numpy())
        if schedule.transition == "mask":  # a visible token was never touched
            expected[:, :size] = np.eye(size, size + 1)
        if schedule.transition == "uniform":  # a mask tells nothing
            upto_s = stacked(form.between, s, torch.zeros_like(s))[:, :, :size]
            expected[:, size] = np.einsum("nsi,ni->ns", upto_s, p[:, size].numpy())
        ours = reverse_probs(p, xt, t, s, schedule)
        np.testing.assert_allclose(ours, expected, atol=1e-9)
        np.testing.assert_allclose(ours.sum(-1), 1, atol=1e-9)
        in_logs = log_reverse_probs(p.log(), xt, t, s, schedule).exp()
        np.testing.assert_allclose(in_logs, expected, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_times_may_differ_between_items(kind):
    schedule = linear_schedule(8, 4, kind)
    generator = torch.Generator().manual_seed(1)
    t, s = torch.tensor([1, 3, 8, 8]), torch.tensor([0, 1, 7, 2])
    x0 = torch.randint(4, (4, 2, 3), generator=generator)
    p = torch.rand(4, 2, 3, 4, generator=generator, dtype=F64)
    xt = sample_xt(x0, t, schedule, generator)
    assert xt.shape == x0.shape
    functions = (
        lambda i, t, s: q_xt_given_x0(x0[i], t, schedule, F64),
        lambda i, t, s: posterior(x0[i], xt[i], t, s, schedule, F64),
        lambda i, t, s: reverse_probs(p[i], xt[i], t, s, schedule),
        lambda i, t, s: log_reverse_probs(p[i].log(), xt[i], t, s, schedule),
    )
    for function in functions:
        together = function(slice(None), t, s)
        alone = [function(i, int(t[i]), int(s[i])) for i in range(4)]
        torch.testing.assert_close(together, torch.stack(alone), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [linear_schedule, quarter_schedule])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_nan_and_unit_mass_at_the_ends_in_low_precision(kind, make, dtype):
    steps, size = 100, 256
    schedule = make(steps, size, kind)
    generator = torch.Generator().manual_seed(2)
    x0 = torch.randint(size, (40,), generator=generator)
    # Every kind of state: clean, replaced, masked.
    xt = torch.cat([x0[:10], torch.randint(size, (15,), generator=generator), x0[25:] * 0 + size])
    # From confident (all mass in one place, the rest underflowed) to undecided.
    logits = torch.randn(40, size, generator=generator) * torch.logspace(-2, 3, 40)[:, None]
    p = logits.softmax(-1).to(dtype)
    for t, s in ((1, 0), (2, 1), (2, 0), (50, 49), (99, 98), (100, 99), (100, 1), (100, 0)):
        for probs in (
            q_xt_given_x0(x0, t, schedule, dtype),
            posterior(x0, xt, t, s, schedule, dtype),
            reverse_probs(p, xt, t, s, schedule),
            log_reverse_probs(logits.to(dtype).log_softmax(-1), xt, t, s, schedule).exp(),
        ):
            mass = probs.double().sum(-1)
            assert torch.isfinite(probs).all()
            tolerance = 1e-4 if dtype == torch.float32 else 0.05
            torch.testing.assert_close(mass, torch.ones_like(mass), rtol=0, atol=tolerance)


def test_linear_schedules_end_exactly_where_the_paper_says():
    ends = {"uniform": (0, 0), "mask": (0, 1), "mask_uniform": (0, 0.9)}
    for kind, (stay, masked) in ends.items():
        for make in (linear_schedule, quarter_schedule):
            schedule = make(100, 256, kind)
            assert (float(schedule.stay[0]), float(schedule.masked[0])) == (1, 0)
            assert (float(schedule.stay[-1]), float(schedule.masked[-1])) == (stay, masked)
    alpha, beta, gamma = linear_schedule(100, 256, "mask_uniform").cumulative(50)
    assert float(alpha) == pytest.approx(0.5)
    assert float(gamma) == pytest.approx(0.45)
    assert float(beta) == pytest.approx(0.05 / 256)


@pytest.mark.parametrize("make", [linear_schedule, quarter_schedule])
@pytest.mark.parametrize("steps", [1, 2, 1000])
def test_every_length_is_a_valid_chain(make, steps):
    for kind in KINDS:
        schedule = make(steps, 7, kind)
        assert schedule.steps == steps
        one_step = schedule.between(torch.arange(1, steps + 1), torch.arange(steps))
        mass = one_step.stay + 7 * one_step.uniform + one_step.masked
        torch.testing.assert_close(mass, torch.ones_like(mass), rtol=0, atol=1e-12)
        assert all((values >= 0).all() for values in one_step)


def test_samples_of_xt_follow_q():
    count = 60_000
    for schedule in (linear_schedule(10, 3, "mask_uniform", 0.6), linear_schedule(10, 3, "mask")):
        for t in (0, 1, 7, 10):
            generator = torch.Generator().manual_seed(t)
            drawn = sample_xt(torch.full((count, 1), 2), t, schedule, generator)
            share = torch.bincount(drawn.flatten(), minlength=4) / count
            expected = q_xt_given_x0(torch.tensor(2), t, schedule)
            assert (share - expected).abs().max() < 5 * math.sqrt(0.25 / count)
            assert (share[expected == 0] == 0).all()


def test_samples_of_the_stationary_distribution():
    schedule = linear_schedule(10, 4, "mask_uniform", 0.6)
    drawn = sample_stationary((200, 20, 15), schedule, torch.Generator().manual_seed(0))
    share = torch.bincount(drawn.flatten(), minlength=5) / drawn.numel()
    torch.testing.assert_close(share.double(), schedule.stationary(), rtol=0, atol=0.01)
    only_masks = sample_stationary((3, 50), linear_schedule(5, 4, "mask"), None)
    assert (only_masks == 4).all()
    assert (sample_stationary((3, 50), linear_schedule(5, 4, "uniform"), None) < 4).all()


def test_a_schedule_that_is_no_chain_is_refused():
    def vector(*values):
        return torch.tensor(values, dtype=F64)

    good = Schedule("mask_uniform", 4, vector(1, 0.5, 0), vector(0, 0.4, 0.9))
    assert good.steps == 2
    bad = [
        (vector(0.9, 0.5, 0), vector(0, 0.4, 0.9), "clean"),
        (vector(1, 0.5, 0.6), vector(0, 0.4, 0.4), "fall"),
        (vector(1, 0.5, 0), vector(0, 0.4, 0.3), "rise"),
        (vector(1, 0.7, 0), vector(0, 0.4, 0.9), "fall"),
        (vector(1, 0.3, 0.29), vector(0, 0.1, 0.6), "fall"),
        (vector(1, 0, 0), vector(0, 0.4, 0.9), "last time"),
        (vector(1, 0.5, 0), vector(0, 0.4), "same length"),
        (vector(1), vector(0), "T \\+ 1"),
        (vector(1, 0.5).float(), vector(0, 0.4), "float64"),
    ]
    for stay, masked, message in bad:
        with pytest.raises(ValueError, match=message):
            Schedule("mask_uniform", 4, stay, masked)


@pytest.mark.parametrize(
    "call",
    [
        lambda: linear_schedule(0, 4, "mask"),
        lambda: linear_schedule(5, 0, "mask"),
        lambda: linear_schedule(5, 4, "other"),
        lambda: linear_schedule(5, 4, "mask_uniform", 1.0),
        lambda: quarter_schedule(5, 4, "mask_uniform", 0.0),
        lambda: official_schedule(1),
        lambda: linear_schedule(5, 4, "mask").between(6, 0),
        lambda: linear_schedule(5, 4, "mask").between(3, 3),
        lambda: linear_schedule(5, 4, "mask").between(3, -1),
    ],
)
def test_misuse_is_refused(call):
    with pytest.raises(ValueError, match=r"."):
        call()
