"""The training loss against sums written out term by term, and the importance sampler."""

import math

import pytest
import torch

from diffsound.decoder.diffusion.loss import (
    ImportanceSampler,
    diffusion_loss,
    simplified_loss,
)
from diffsound.decoder.diffusion.official import official_schedule
from diffsound.decoder.diffusion.process import (
    Schedule,
    linear_schedule,
    posterior,
    q_xt_given_x0,
    quarter_schedule,
    reverse_probs,
    sample_xt,
)

KINDS = ("uniform", "mask", "mask_uniform")
SIZE, STEPS = 4, 6


def prior_kl(schedule: Schedule) -> float:
    """L_T = D_KL(q(x_T|x_0) ‖ p(x_T)) per token (eq. 22): constant, and 0 for exact ends."""
    stay, uniform, masked = (float(value) for value in schedule.cumulative(schedule.steps))
    if masked == 1:
        return 0.0
    rest = (1 - masked) / schedule.codebook_size
    others = (schedule.codebook_size - 1) * uniform
    kl = (stay + uniform) * math.log((stay + uniform) / rest)
    return kl + (others * math.log(uniform / rest) if others > 0 else 0.0)


def example(kind, t, seed=0):
    """A schedule, logits [B, 2, 3, K], clean and noised tokens [B, 2, 3], all float64."""
    generator = torch.Generator().manual_seed(seed)
    schedule = linear_schedule(STEPS, SIZE, kind)
    x0 = torch.randint(SIZE, (len(t), 2, 3), generator=generator)
    logits = 2 * torch.randn(len(t), 2, 3, SIZE, generator=generator, dtype=torch.float64)
    return schedule, logits, x0, sample_xt(x0, t, schedule, generator)


@pytest.mark.parametrize("kind", KINDS)
def test_loss_equals_the_written_out_divergence(kind):
    t = torch.arange(1, STEPS + 1)
    schedule, logits, x0, xt = example(kind, t)
    terms = diffusion_loss(logits, x0, xt, t, schedule, auxiliary_weight=0.01)
    p = logits.softmax(-1)
    for item in range(STEPS):
        kl, nll = 0.0, 0.0
        for cell in [(i, j) for i in range(2) for j in range(3)]:
            at = (item, *cell)
            times = (int(t[item]), int(t[item]) - 1)
            true = posterior(x0[at], xt[at], *times, schedule, torch.float64)
            model = reverse_probs(p[at], xt[at], *times, schedule)
            kl += sum(
                float(q) * math.log(float(q) / float(m))
                for q, m in zip(true, model, strict=True)
                if q > 0
            )
            nll -= math.log(float(p[at][x0[at]]))
        assert float(terms.kl[item]) == pytest.approx(kl / 6, abs=1e-9)
        assert float(terms.x0_nll[item]) == pytest.approx(nll / 6, abs=1e-9)
        expected = STEPS * (kl / 6 + 0.01 * nll / 6)
        assert float(terms.loss[item]) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("kind", ["uniform", "mask_uniform"])
def test_the_first_step_is_the_likelihood_of_x0(kind):
    schedule, logits, x0, xt = example(kind, torch.ones(3, dtype=torch.long))
    terms = diffusion_loss(logits, x0, xt, torch.ones(3, dtype=torch.long), schedule)
    torch.testing.assert_close(terms.kl, terms.x0_nll)


@pytest.mark.parametrize("kind", KINDS)
def test_vlb_bounds_the_likelihood_and_is_tight_for_the_true_denoiser(kind):
    """For one token the exact bound of the optimal network is the entropy of the data."""
    schedule = linear_schedule(STEPS, SIZE, kind, 0.7)
    data = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    x0 = torch.arange(SIZE)

    def bound(tempered):
        total = prior_kl(schedule)
        for t in range(1, STEPS + 1):
            q_xt = q_xt_given_x0(x0, t, schedule, torch.float64)  # [x0, xt]
            joint = data[:, None] * q_xt
            denoiser = (joint / joint.sum(0).clamp_min(1e-300)).T  # p(x0 | xt): [xt, x0]
            logits = (denoiser + 1e-30).log() * tempered
            for xt in range(SIZE + 1):
                weight = joint[:, xt]
                terms = diffusion_loss(
                    logits[xt].expand(SIZE, 1, SIZE),
                    x0[:, None],
                    torch.full((SIZE, 1), xt),
                    torch.full((SIZE,), t),
                    schedule,
                    auxiliary_weight=0,
                )
                total += float((weight * terms.kl).sum())
        return total

    entropy = -float((data * data.log()).sum())
    assert bound(1.0) == pytest.approx(entropy, abs=1e-6)
    assert bound(0.5) > entropy + 1e-3


def test_published_variants_of_the_weights():
    t = torch.tensor([1, 4, 6])
    schedule, logits, x0, xt = example("mask_uniform", t)
    plain = diffusion_loss(logits, x0, xt, t, schedule, auxiliary_weight=0)
    fixed = diffusion_loss(logits, x0, xt, t, schedule, auxiliary_weight=0.5)
    grown = diffusion_loss(logits, x0, xt, t, schedule, auxiliary_weight=0.5, adaptive=True)
    growth = (grown.loss - plain.loss) / (fixed.loss - plain.loss)
    torch.testing.assert_close(growth, 1 + torch.tensor([0, 3, 5]).double() / STEPS)
    probability = torch.tensor([0.5, 0.25, 0.125])
    weighted = diffusion_loss(
        logits, x0, xt, t, schedule, auxiliary_weight=0, t_probability=probability
    )
    torch.testing.assert_close(weighted.loss, plain.kl / probability.double())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loss_and_gradient_stay_finite_at_the_ends_and_when_hopelessly_wrong(kind, dtype):
    schedule = quarter_schedule(100, 16, kind)
    t = torch.tensor([1, 2, 99, 100])
    generator = torch.Generator().manual_seed(0)
    x0 = torch.randint(16, (4, 8), generator=generator)
    xt = sample_xt(x0, t, schedule, generator)
    wrong = torch.nn.functional.one_hot((x0 + 1) % 16, 16) * 1000.0
    logits = wrong.to(dtype).requires_grad_()
    terms = diffusion_loss(logits, x0, xt, t, schedule)
    assert terms.loss.dtype == torch.float32
    assert torch.isfinite(terms.loss).all()
    terms.loss.sum().backward()
    assert torch.isfinite(logits.grad).all()
    assert (logits.grad != 0).any()


def test_gradient_reaches_a_prediction_whose_probability_underflows():
    schedule = linear_schedule(10, 3, "mask")
    logits = torch.tensor([[[0.0, 500.0, 0.0]]], requires_grad=True)
    zero = torch.zeros(1, 1, dtype=torch.long)
    loss = diffusion_loss(logits, zero, zero + 3, torch.tensor([5]), schedule).loss
    loss.sum().backward()
    assert float(loss.detach()) > 100
    assert float(logits.grad[0, 0, 0]) < -0.1


def test_simplified_loss_counts_the_cells_to_guess():
    t = torch.tensor([2, 5])
    for kind in KINDS:
        schedule, logits, x0, xt = example(kind, t)
        nll = -logits.log_softmax(-1).gather(-1, x0[..., None])[..., 0]
        loss = simplified_loss(logits, x0, xt, schedule)
        for item in range(2):
            counted = (xt[item] == SIZE) if kind == "mask" else torch.ones(2, 3, dtype=torch.bool)
            expected = nll[item][counted].mean()
            assert float(loss[item]) == pytest.approx(float(expected), rel=1e-5)
    schedule, logits, x0, _ = example("mask", t)
    assert simplified_loss(logits, x0, x0, schedule).tolist() == [0, 0]


def test_a_single_cell_to_guess_is_the_whole_simplified_loss():
    schedule, logits, x0, _ = example("mask", torch.ones(1, dtype=torch.long))
    xt = x0.clone()
    xt[0, 1, 2] = SIZE
    nll = -logits.log_softmax(-1)[0, 1, 2, x0[0, 1, 2]]
    torch.testing.assert_close(simplified_loss(logits, x0, xt, schedule)[0], nll)


def test_prior_term_is_zero_for_exact_ends_and_enumerable_otherwise():
    for kind in KINDS:
        assert prior_kl(linear_schedule(9, 5, kind)) == pytest.approx(0, abs=1e-12)
    schedule = official_schedule(10, 6)
    q = q_xt_given_x0(torch.tensor(2), 10, schedule, torch.float64)
    expected = float((q * (q / schedule.stationary()).log()).sum())
    assert expected > 0
    assert prior_kl(schedule) == pytest.approx(expected, rel=1e-6)


def test_importance_sampler_is_uniform_until_every_time_was_seen():
    sampler = ImportanceSampler(3)
    for _ in range(10):
        sampler.update(torch.tensor([1, 2, 3]), torch.tensor([1.0, 2.0, 8.0]))
    assert sampler.probabilities().tolist() == pytest.approx([1 / 3] * 3)
    sampler.update(torch.tensor([1, 2]), torch.tensor([1.0, 2.0]))
    assert sampler.probabilities().tolist() == pytest.approx([1 / 3] * 3)
    sampler.update(torch.tensor([3]), torch.tensor([8.0]))
    share = 1 - 0.9**11
    # Root of the running mean of squares; the first time borrows the second's weight.
    weights = [2 * math.sqrt(share), 2 * math.sqrt(share), 8 * math.sqrt(share)]
    expected = [(w + 1e-4) / (sum(weights) + 3e-4) for w in weights]
    assert sampler.probabilities().tolist() == pytest.approx(expected, rel=1e-5)


def test_importance_sampler_draws_by_its_probabilities_and_resumes():
    sampler = ImportanceSampler(4)
    for _ in range(11):
        sampler.update(torch.tensor([1, 2, 3, 4]), torch.tensor([9.0, 1.0, 2.0, 4.0]))
    t, probability = sampler.draw(20_000, torch.Generator().manual_seed(0))
    assert set(t.tolist()) == {1, 2, 3, 4}
    torch.testing.assert_close(probability, sampler.probabilities()[t - 1])
    share = torch.bincount(t - 1) / len(t)
    torch.testing.assert_close(share, sampler.probabilities(), rtol=0, atol=0.02)
    resumed = ImportanceSampler(4)
    resumed.load_state_dict(sampler.state_dict())
    for left, right in zip(
        sampler.draw(50, torch.Generator().manual_seed(1)),
        resumed.draw(50, torch.Generator().manual_seed(1)),
        strict=True,
    ):
        assert torch.equal(left, right)


def test_importance_sampler_averages_items_that_share_a_time():
    one, other = ImportanceSampler(2), ImportanceSampler(2)
    one.update(torch.tensor([2, 2, 1]), torch.tensor([3.0, 5.0, 1.0]))
    other.update(torch.tensor([1, 2, 2]), torch.tensor([1.0, 5.0, 3.0]))
    assert one.history.tolist() == pytest.approx([0.1, 0.1 * (9 + 25) / 2])
    assert torch.equal(one.history, other.history)
    assert one.count.tolist() == [1, 2]
    assert ImportanceSampler(1).probabilities().tolist() == [1]
    with pytest.raises(ValueError, match="at least 1"):
        ImportanceSampler(0)
