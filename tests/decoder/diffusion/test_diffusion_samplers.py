"""Samplers: the law they draw from, the cells they keep, and what they must not depend on."""

import itertools
import math

import pytest
import torch

from diffsound.decoder.diffusion.official import official_schedule
from diffsound.decoder.diffusion.process import (
    linear_schedule,
    q_xt_given_x0,
    reverse_probs,
    sample_stationary,
    sample_xt,
)
from diffsound.decoder.diffusion.samplers import (
    ancestral,
    confidence,
    mask_share,
    official,
    timesteps_for,
)

KINDS = ("uniform", "mask", "mask_uniform")
SIZE = 3
# A joint distribution of two dependent tokens.
JOINT = torch.tensor(
    [[0.30, 0.05, 0.02], [0.03, 0.25, 0.05], [0.10, 0.02, 0.18]], dtype=torch.float64
)


def seeded(*seeds):
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def true_denoiser(schedule):
    """predict(tokens [B, 2], t): the exact log p(x_0^i | x_t) under JOINT, by enumeration."""

    def predict(tokens, t):
        likelihood = q_xt_given_x0(torch.arange(SIZE), t, schedule, torch.float64)  # [x0, xt]
        if schedule.transition == "mask":  # up to a factor, and also where q(x_t | x_0) is 0
            likelihood = torch.eye(SIZE, SIZE + 1, dtype=torch.float64)
            likelihood[:, SIZE] = 1
        first, second = likelihood[:, tokens[:, 0]].T, likelihood[:, tokens[:, 1]].T  # [B, x0]
        weight = JOINT * first[:, :, None] * second[:, None, :]
        weight = weight / weight.sum((1, 2), keepdim=True)
        return (torch.stack([weight.sum(2), weight.sum(1)], 1) + 1e-300).log()

    return predict


def shares(tokens):
    """How often each pair occurs, [3, 3]."""
    return torch.bincount(tokens[:, 0] * SIZE + tokens[:, 1], minlength=9).view(3, 3) / len(tokens)


def close(share, expected, count, bias=0.0):
    return float((share - expected).abs().max()) < 4.5 * math.sqrt(0.2 / count) + bias


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_steps", [1, 3, 7, 10])
def test_one_token_chain_has_exactly_the_law_of_the_data(kind, num_steps):
    """No sampling: the chain's matrices, multiplied, turn p(x_T) into the data's distribution."""
    schedule = linear_schedule(10, SIZE, kind, 0.7)
    data = JOINT.sum(1)
    states = torch.arange(SIZE + 1)
    law = schedule.stationary()
    for t, s in itertools.pairwise(timesteps_for(10, num_steps=num_steps)):
        joint = data[:, None] * q_xt_given_x0(torch.arange(SIZE), t, schedule, torch.float64)
        p_x0 = (joint / joint.sum(0).clamp_min(1e-300)).T
        law = law @ reverse_probs(p_x0, states, t, s, schedule)
    torch.testing.assert_close(law[:SIZE], data, rtol=0, atol=1e-9)
    assert float(law[SIZE]) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_ancestral_chain_recovers_a_joint_distribution(kind):
    count, schedule = 6_000, linear_schedule(40, SIZE, kind)
    generator = torch.Generator().manual_seed(0)
    start = sample_stationary((count, 2), schedule, generator)
    tokens = ancestral(true_denoiser(schedule), schedule, start, timesteps_for(40), generator)
    # Tokens of one step are drawn apart, which costs an error of the order of 1/steps.
    assert close(shares(tokens), JOINT, count, bias=0.01)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stride", [3, 7])
def test_a_strided_chain_passes_through_the_laws_of_the_forward_process(kind, stride):
    """Between its ends too: the posterior of one step would leave too much noise on the way."""
    count, schedule = 12_000, linear_schedule(20, SIZE, kind, 0.7)
    data = JOINT.sum(1)

    def joint(t):
        return data[:, None] * q_xt_given_x0(torch.arange(SIZE), t, schedule, torch.float64)

    def predict(tokens, t):
        return (joint(t)[:, tokens] + 1e-300).movedim(0, -1).log()

    times = timesteps_for(20, stride=stride)
    laws = []
    generator = torch.Generator().manual_seed(0)
    ancestral(
        predict,
        schedule,
        sample_stationary((count, 1), schedule, generator),
        times,
        generator,
        callback=lambda done, total, tokens: laws.append(
            torch.bincount(tokens.flatten(), minlength=SIZE + 1) / count
        ),
    )
    assert len(laws) == len(times) - 1
    for t, law in zip(times[1:], laws, strict=True):
        assert close(law, joint(t).sum(0), count)


def test_confidence_sampler_recovers_a_joint_distribution_one_cell_at_a_time():
    count, schedule = 6_000, linear_schedule(20, SIZE, "mask")
    tokens = confidence(
        true_denoiser(schedule),
        schedule,
        torch.full((count, 2), SIZE),
        2,
        torch.Generator().manual_seed(0),
        choice_temperature=1e6,  # a random order, which has no say in the values
    )
    assert close(shares(tokens), JOINT, count)


def test_known_cells_condition_the_mask_chain_exactly():
    count, schedule = 6_000, linear_schedule(20, SIZE, "mask")
    keep = torch.tensor([True, False]).expand(count, 2)
    tokens = ancestral(
        true_denoiser(schedule),
        schedule,
        torch.full((count, 2), SIZE),
        timesteps_for(20, num_steps=4),
        torch.Generator().manual_seed(0),
        known=torch.full((count, 2), 2),
        keep=keep,
    )
    assert (tokens[:, 0] == 2).all()
    share = torch.bincount(tokens[:, 1], minlength=3) / count
    assert close(share, JOINT[2] / JOINT[2].sum(), count)


def test_official_chain_recovers_the_distribution_nearly():
    count, schedule = 6_000, official_schedule(40, SIZE)
    tokens = official(
        true_denoiser(schedule),
        schedule,
        torch.full((count, 2), SIZE),
        torch.Generator().manual_seed(0),
        truncation=1.0,
    )
    # It miscounts the codes by one, which weighs at K = 3 and vanishes at K = 256.
    assert close(shares(tokens), JOINT, count, bias=0.05)
    assert int(tokens.max()) < SIZE


def network(size, cells):
    """A deterministic stand-in that couples all cells of an item and nothing else."""
    generator = torch.Generator().manual_seed(9)
    table = torch.randn(size + 1, cells, cells * size, generator=generator, dtype=torch.float64)

    def predict(tokens, t):
        flat = tokens.flatten(1)
        rows = [sum(table[token, cell] for cell, token in enumerate(item)) for item in flat]
        return torch.stack(rows).view(*tokens.shape, size) / math.sqrt(cells) + 0.01 * t

    return predict


def every_sampler(schedule, cells, **common):
    """Each sampler as run(start, generators), in settings that use all of its parts."""
    predict = network(schedule.codebook_size, cells)
    filters = {"temperature": 0.9, "top_k": 4, "truncation": 0.95}
    return {
        "ancestral": lambda start, g: ancestral(
            predict, schedule, start, timesteps_for(12, num_steps=5), g, **filters, **common
        ),
        "confidence": lambda start, g: confidence(
            predict, schedule, start, 5, g, remask=0.4, **filters, **common
        ),
        "official": lambda start, g: official(predict, schedule, start, g, stride=3, **common),
    }


SAMPLERS = ("ancestral", "confidence", "official")
SHAPE = (2, 4)


@pytest.mark.parametrize("name", SAMPLERS)
def test_an_item_is_the_same_alone_and_in_a_batch(name):
    schedule = linear_schedule(12, 5, "mask_uniform")
    run = every_sampler(schedule, 8)[name]
    batch = run(torch.full((3, *SHAPE), 5), seeded(1, 2, 3))
    again = run(torch.full((3, *SHAPE), 5), seeded(1, 2, 3))
    alone = run(torch.full((1, *SHAPE), 5), seeded(2))
    assert torch.equal(batch, again)
    assert torch.equal(batch[1], alone[0])
    assert len({tuple(item.flatten().tolist()) for item in batch}) == 3
    assert batch.dtype == torch.int64
    assert batch.shape == (3, *SHAPE)
    assert int(batch.min()) >= 0
    assert int(batch.max()) < 5


@pytest.mark.parametrize("name", SAMPLERS)
def test_kept_cells_are_exact_at_every_step_and_steps_are_reported(name):
    schedule = linear_schedule(12, 5, "mask_uniform")
    generator = torch.Generator().manual_seed(3)
    known = torch.randint(5, (2, *SHAPE), generator=generator)
    keep = torch.zeros(2, *SHAPE, dtype=torch.bool)
    keep[:, :, :2] = True
    calls = []

    def callback(done, total, tokens):
        calls.append((done, total))
        assert torch.equal(tokens[keep], known[keep])

    run = every_sampler(schedule, 8, known=known, keep=keep, callback=callback)[name]
    tokens = run(torch.full((2, *SHAPE), 5), seeded(1, 2))
    assert torch.equal(tokens[keep], known[keep])
    assert int(tokens.max()) < 5
    assert [done for done, _ in calls] == list(range(1, calls[-1][1] + 1))


@pytest.mark.parametrize("name", SAMPLERS)
def test_keep_without_known_is_refused(name):
    schedule = linear_schedule(12, 5, "mask_uniform")
    keep = torch.ones(1, *SHAPE, dtype=torch.bool)
    with pytest.raises(ValueError, match="known"):
        every_sampler(schedule, 8, keep=keep)[name](torch.full((1, *SHAPE), 5), seeded(0))


def test_everything_kept_comes_back_untouched():
    schedule = linear_schedule(12, 5, "mask_uniform")
    known = torch.arange(8).view(1, *SHAPE) % 5
    common = {"known": known, "keep": torch.ones_like(known, dtype=torch.bool)}
    for run in every_sampler(schedule, 8, **common).values():
        assert torch.equal(run(torch.full((1, *SHAPE), 5), seeded(0)), known)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sure_network_gets_what_it_says_from_any_start_and_any_number_of_steps(kind):
    schedule = linear_schedule(9, 5, kind)
    target = torch.arange(8).view(1, *SHAPE) % 5
    logits = 50.0 * torch.nn.functional.one_hot(target, 5)
    for start_time in (1, 4, 9):
        for num_steps in range(1, start_time + 1):
            times = timesteps_for(9, num_steps=num_steps, start=start_time)
            start = sample_xt(target, start_time, schedule, seeded(start_time))
            tokens = ancestral(lambda x, t: logits, schedule, start, times, seeded(num_steps))
            assert torch.equal(tokens, target)


@pytest.mark.parametrize("kind", ["mask", "uniform", "mask_uniform"])
def test_a_chain_in_two_parts_is_the_chain(kind: str) -> None:
    schedule = linear_schedule(10, 5, kind)
    table = torch.randn(11, 6, 5, generator=torch.Generator().manual_seed(3))

    def predict(tokens, t):
        return table[t][tokens]

    start = torch.full((2, 40), 5 if kind != "uniform" else 0)
    chain = timesteps_for(10)
    whole = ancestral(predict, schedule, start, chain, seeded(0, 1))
    generators = seeded(0, 1)
    half = ancestral(predict, schedule, start, chain[:6], generators)
    assert torch.equal(ancestral(predict, schedule, half, chain[5:], generators), whole)
    assert not torch.equal(half, whole)


def test_ancestral_tells_the_network_the_times_of_the_chain():
    seen = []

    def predict(tokens, t):
        seen.append(t)
        return torch.zeros(*tokens.shape, 5)

    schedule = linear_schedule(10, 5, "mask")
    ancestral(predict, schedule, torch.full((1, 4), 5), timesteps_for(10, stride=4), seeded(0))
    assert seen == [10, 6, 2]
    for times in ([5], [3, 5], [5, 5, 0], []):
        with pytest.raises(ValueError, match="at least two falling times"):
            ancestral(predict, schedule, torch.full((1, 4), 5), times, seeded(0))


def test_confidence_unmasks_along_a_cosine_surest_first():
    schedule = linear_schedule(16, 4, "mask")
    cells = 16
    sure = torch.linspace(1, 20, cells)  # later cells are surer
    logits = torch.zeros(1, cells, 4)
    logits[..., 1] = sure
    masked, times = [], []

    def predict(tokens, t):
        times.append(t)
        return logits

    def callback(done, total, tokens):
        masked.append((tokens == 4)[0])

    confidence(
        predict,
        schedule,
        torch.full((1, cells), 4),
        4,
        seeded(0),
        temperature=0.01,
        choice_temperature=0.0,
        callback=callback,
    )
    counts = [int(16 * math.cos(math.pi / 2 * i / 4)) for i in range(1, 5)]
    assert [int(m.sum()) for m in masked] == counts == [14, 11, 6, 0]
    assert times == [16, 14, 11, 6]  # the share of masks, in sixteenths
    for m, count in zip(masked, counts, strict=True):
        assert m[:count].all()  # the least sure ones wait


def test_the_choice_of_cells_is_a_draw_by_their_probability():
    """log p plus Gumbel noise of scale 1: each cell is first with its p's share of all."""
    count, options = 6_000, (1, 2, 4)  # a cell that draws among n equal tokens is sure by 1/n
    logits = torch.full((3, 4), -torch.inf)
    for cell, number in enumerate(options):
        logits[cell, :number] = 0
    kept = []
    confidence(
        lambda tokens, t: logits.expand(count, 3, 4),
        linear_schedule(8, 4, "mask"),
        torch.full((count, 3), 4),
        2,
        torch.Generator().manual_seed(0),
        choice_temperature=2.0,  # halved after the first of two steps
        callback=lambda done, total, tokens: kept.append(tokens != 4),
    )
    assert kept[0].sum(1).tolist() == [1] * count
    weights = torch.tensor([1 / number for number in options])
    assert close(kept[0].float().mean(0), weights / weights.sum(), count)


def test_confidence_redraws_unsure_tokens_only_when_asked():
    schedule = linear_schedule(20, 6, "mask")
    history = []

    def run(remask):
        history.clear()
        confidence(
            network(6, 12),
            schedule,
            torch.full((1, 12), 6),
            6,
            seeded(5),
            remask=remask,
            callback=lambda done, total, tokens: history.append(tokens.clone()),
        )
        changed = 0
        for before, after in itertools.pairwise(history):
            changed += int(((before != 6) & (after != before)).sum())
        masks = [int((tokens == 6).sum()) for tokens in history]
        return changed, masks

    plain, remasked = run(0.0), run(0.5)
    assert plain[0] == 0
    assert remasked[0] > 0
    assert plain[1] == remasked[1]  # the number of masks follows the same cosine


def test_confidence_leaves_visible_start_cells_alone_and_wants_equal_numbers():
    schedule = linear_schedule(20, 6, "mask_uniform")
    original = torch.arange(24).view(2, 12) % 6
    keep = torch.zeros(2, 12, dtype=torch.bool)
    keep[:, :4] = True
    start = mask_share(original, 0.5, seeded(1, 2), schedule, keep)
    hidden = start == 6
    assert hidden.sum(1).tolist() == [4, 4]
    assert not (hidden & keep).any()
    assert not torch.equal(hidden[0], hidden[1])
    assert torch.equal(mask_share(original[1:], 0.5, seeded(2), schedule, keep[1:]), start[1:])
    tokens = confidence(network(6, 12), schedule, start, 3, seeded(3, 4), remask=0.5)
    assert torch.equal(tokens[~hidden], original[~hidden])
    assert int(tokens.max()) < 6
    uneven = start.clone()
    uneven[0, hidden[0].nonzero()[0]] = 0
    with pytest.raises(ValueError, match="same number"):
        confidence(network(6, 12), schedule, uneven, 3, seeded(3, 4))


def test_confidence_refuses_misuse():
    masks = torch.full((1, 4), 5)
    mask, uniform = linear_schedule(5, 5, "mask"), linear_schedule(5, 5, "uniform")
    with pytest.raises(ValueError, match="mask"):
        confidence(network(5, 4), uniform, masks, 2, seeded(0))
    with pytest.raises(ValueError, match="num_steps"):
        confidence(network(5, 4), mask, masks, 0, seeded(0))
    with pytest.raises(ValueError, match="remask"):
        confidence(network(5, 4), mask, masks, 2, seeded(0), remask=1.0)


@pytest.mark.parametrize(
    ("stride", "evaluations"), [(1, 100), (3, 34), (7, 15), (100, 1), (500, 1)]
)
def test_strided_times_land_on_zero(stride, evaluations):
    times = timesteps_for(100, stride=stride)
    assert times[0] == 100
    assert times[-1] == 0
    assert len(times) - 1 == evaluations
    assert {a - b for a, b in itertools.pairwise(times[:-1])} <= {stride}


def test_any_number_of_steps_from_any_start_falls_evenly_to_zero():
    for start in range(1, 41):
        for num_steps in range(1, start + 1):
            times = timesteps_for(40, num_steps=num_steps, start=start)
            gaps = [a - b for a, b in itertools.pairwise(times)]
            assert (times[0], times[-1], len(gaps)) == (start, 0, num_steps)
            assert min(gaps) >= 1
            assert max(gaps) - min(gaps) <= 1
    assert timesteps_for(3) == [3, 2, 1, 0]
    assert timesteps_for(10, num_steps=4) == [10, 8, 5, 3, 0]  # to the nearest, halves up


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_steps": 0},
        {"num_steps": 11},
        {"num_steps": 5, "start": 4},
        {"stride": 0},
        {"start": 0},
        {"start": 11},
        {"num_steps": 2, "stride": 2},
    ],
)
def test_impossible_times_are_refused(wrong):
    with pytest.raises(ValueError, match=r"num_steps|stride|start"):
        timesteps_for(10, **wrong)
