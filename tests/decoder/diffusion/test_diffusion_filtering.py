"""Guidance, temperature, top-k and truncation; noise that belongs to an item."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from diffsound.decoder.diffusion.process import uniforms
from diffsound.decoder.diffusion.samplers import (
    draw_categorical,
    filter_logits,
    guide,
    gumbel,
    truncation_mask,
)

LOGITS = torch.tensor([0.1, 0.4, 0.05, 0.3, 0.15]).log()


def test_temperature_sharpens_and_zero_is_greedy():
    torch.testing.assert_close(filter_logits(LOGITS), LOGITS.exp())
    squared = LOGITS.exp() ** 2
    torch.testing.assert_close(filter_logits(LOGITS, temperature=0.5), squared / squared.sum())
    assert filter_logits(LOGITS, temperature=0).tolist() == [0, 1, 0, 0, 0]


def test_top_k_keeps_the_k_most_likely():
    expected = torch.tensor([0, 4 / 7, 0, 3 / 7, 0])
    torch.testing.assert_close(filter_logits(LOGITS, top_k=2), expected)
    torch.testing.assert_close(filter_logits(LOGITS, top_k=99), LOGITS.exp())


def test_truncation_keeps_the_crossing_token():
    keep_two = torch.tensor([0, 4 / 7, 0, 3 / 7, 0])
    torch.testing.assert_close(filter_logits(LOGITS, truncation=0.41), keep_two)
    torch.testing.assert_close(filter_logits(LOGITS, truncation=0.69), keep_two)
    assert (filter_logits(LOGITS, truncation=0.71) > 0).sum() == 3
    assert filter_logits(LOGITS, truncation=1e-6).tolist() == [0, 1, 0, 0, 0]
    tie = torch.zeros(4)
    assert filter_logits(tie, truncation=0.5).tolist() == [0.5, 0.5, 0, 0]


@given(
    arrays("float64", (3, 6), elements=st.floats(-30, 30)),
    st.floats(0.01, 0.99),
)
def test_truncation_keeps_the_smallest_sufficient_set(values, mass):
    probs = torch.tensor(values).softmax(-1)
    keep = truncation_mask(probs, mass)
    for row, kept in zip(probs, keep, strict=True):
        size = int(kept.sum())
        largest = row.sort(descending=True).values
        assert float(row[kept].sum()) == pytest.approx(float(largest[:size].sum()))
        assert float(largest[:size].sum()) >= mass - 1e-9
        assert float(largest[: size - 1].sum()) < mass + 1e-9


def test_without_truncation_the_least_likely_token_stays():
    """In float32 the others' mass is 1 already; it must not be taken for the whole."""
    logits = torch.tensor([0.0, -30.0])
    assert (filter_logits(logits) > 0).all()
    assert (filter_logits(logits, truncation=1.0 - 1e-6) > 0).tolist() == [True, False]


def test_filters_take_low_precision_and_refuse_nonsense():
    assert filter_logits(LOGITS.bfloat16()).dtype == torch.float32
    assert filter_logits(LOGITS.double()).dtype == torch.float64
    for wrong in ({"temperature": -1}, {"top_k": 0}, {"truncation": 0}, {"truncation": 1.1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            filter_logits(LOGITS, **wrong)


def test_guidance_moves_along_the_difference_of_log_probabilities():
    generator = torch.Generator().manual_seed(0)
    cond, uncond = torch.randn(2, 3, 7, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(guide(cond, uncond, 1.0), cond)
    torch.testing.assert_close(guide(cond, uncond, 0.0), uncond)
    p_c, p_u = cond.softmax(-1), uncond.softmax(-1)
    expected = p_c**2.5 * p_u**-1.5
    expected = expected / expected.sum(-1, keepdim=True)
    torch.testing.assert_close(guide(cond, uncond, 2.5).softmax(-1), expected)
    # A constant added to a network's logits changes nothing.
    torch.testing.assert_close(guide(cond + 5, uncond - 3, 2.5).softmax(-1), expected)


def test_an_item_draws_the_same_noise_alone_and_in_a_batch():
    def seeded(*seeds):
        return [torch.Generator().manual_seed(seed) for seed in seeds]

    together = seeded(1, 2, 3)
    first, second = uniforms(together, (3, 4, 5)), uniforms(together, (3, 2))
    alone = seeded(2)
    assert torch.equal(uniforms(alone, (1, 4, 5))[0], first[1])
    assert torch.equal(uniforms(alone, (1, 2))[0], second[1])
    assert not torch.equal(first[0], first[1])
    with pytest.raises(ValueError, match="3 items need 3 generators, got 2"):
        uniforms(seeded(1, 2), (3, 4))


def test_one_generator_serves_a_whole_batch():
    noise = uniforms(torch.Generator().manual_seed(4), (2, 3))
    assert torch.equal(noise, torch.rand(2, 3, generator=torch.Generator().manual_seed(4)))
    assert uniforms(None, (2, 3)).shape == (2, 3)


def test_categorical_draw_inverts_the_cumulative_sum():
    probs = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    noise = torch.linspace(0, 1, 1001)[:-1]
    drawn = draw_categorical(probs.expand(1000, 6), noise)
    share = torch.bincount(drawn, minlength=6) / 1000
    torch.testing.assert_close(share, probs, rtol=0, atol=0.002)
    # Unnormalised rows mean the same.
    assert torch.equal(drawn, draw_categorical(4 * probs.expand(1000, 6), noise))


@given(
    arrays("float32", 5, elements=st.sampled_from([0.0, 1e-30, 1e-8, 0.3, 1.0])),
    st.sampled_from([0.0, 2**-24, 0.5, 1 - 2**-24]),
)
def test_impossible_classes_are_never_drawn(weights, uniform):
    probs = torch.tensor(weights)
    if probs.sum() > 0:
        drawn = draw_categorical(probs[None], torch.tensor([uniform], dtype=torch.float32))
        assert float(probs[drawn]) > 0


def test_gumbel_is_finite_and_has_its_mean():
    assert torch.isfinite(gumbel(torch.tensor([0.0, 1 - 2**-24]))).all()
    noise = gumbel(uniforms(torch.Generator().manual_seed(0), (1, 100_000)))
    assert float(noise.mean()) == pytest.approx(0.5772, abs=0.02)
    assert float(noise.var()) == pytest.approx(1.6449, abs=0.05)


@pytest.mark.parametrize(
    "extreme",
    [
        {"temperature": 1e-40},
        {"temperature": 1e-300},
        {"truncation": 1e-300},
        {"truncation": 1e-46},
    ],
)
def test_values_that_float32_cannot_hold_mean_the_likeliest_token(extreme: dict) -> None:
    assert filter_logits(LOGITS, **extreme).tolist() == [0, 1, 0, 0, 0]
