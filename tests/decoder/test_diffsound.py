"""Diffsound: its loss, every sampler, guidance, editing, and what it refuses."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from diffsound.decoder import SamplingSettings
from diffsound.decoder.config import DiffsoundConfig, LossConfig, ScheduleConfig
from diffsound.decoder.diffsound import Diffsound
from diffsound.decoder.sampling import Known
from diffsound.errors import InputError

GRID = (2, 7)
SETTINGS = [
    SamplingSettings(),
    SamplingSettings(num_inference_steps=3, temperature=0.8),
    SamplingSettings(stride=4, truncation=0.85),
    SamplingSettings(guidance_scale=2.5, top_k=3),
    SamplingSettings(sampler="confidence", num_inference_steps=4, remask=0.3, guidance_scale=2.0),
    SamplingSettings(sampler="official", stride=3, truncation=0.85),
]


def build(seed: int = 0, **changes: Any) -> Diffsound:
    torch.manual_seed(seed)
    model = Diffsound(DiffsoundConfig.tiny().model_copy(update=changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


@pytest.fixture(scope="module")
def model() -> Diffsound:
    return build()


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("position", ["cell", "column"])
def test_alone_or_in_a_batch(
    make_text: Any, make_generators: Any, position: str, settings: SamplingSettings
) -> None:
    model = build(position=position, pooled_text=True)
    text, negative = make_text([5, 1, 3]), make_text([2, 4, 1], seed=1)
    together = model.generate(text, GRID, make_generators([4, 5, 6]), settings, negative=negative)
    assert together.shape == (3, *GRID)
    assert 0 <= together.min() <= together.max() < 8
    for item in range(3):
        alone = model.generate(
            text[item : item + 1],
            GRID,
            make_generators([4 + item]),
            settings,
            negative=negative[item : item + 1],
        )
        assert torch.equal(alone[0], together[item])


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_seed_is_a_sound(
    model: Diffsound, make_text: Any, make_generators: Any, settings: SamplingSettings
) -> None:
    text = make_text([3, 4])

    def draw(seeds: list[int]) -> torch.Tensor:
        return model.generate(text, (2, 20), make_generators(seeds), settings, negative=text)

    assert torch.equal(draw([1, 2]), draw([1, 2]))
    assert not torch.equal(draw([1, 2]), draw([3, 4]))


def test_guidance_ends(model: Diffsound, make_text: Any, make_generators: Any) -> None:
    text, negative = make_text([3]), make_text([4], seed=9)

    def draw(scale: float, words: Any, away: Any) -> torch.Tensor:
        settings = SamplingSettings(guidance_scale=scale)
        return model.generate(words, (2, 30), make_generators([0]), settings, negative=away)

    assert torch.equal(draw(0.0, text, negative), draw(1.0, negative, None))
    assert torch.equal(draw(3.0, text, text), draw(1.0, text, None))
    assert not torch.equal(draw(3.0, text, negative), draw(1.0, text, None))


@pytest.mark.parametrize("start_step", [None, 1, 4, 10])
@pytest.mark.parametrize("settings", SETTINGS)
def test_kept_cells_stay(
    model: Diffsound,
    make_text: Any,
    make_generators: Any,
    settings: SamplingSettings,
    start_step: int | None,
) -> None:
    text = make_text([3, 2])
    tokens = torch.randint(8, (2, *GRID))
    keep = torch.zeros(2, *GRID, dtype=torch.bool)
    keep[:, :, 2:5] = True
    known = Known(tokens, keep, start_step)
    seen = []
    out = model.generate(
        text,
        GRID,
        make_generators([0, 1]),
        settings,
        negative=text,
        known=known,
        callback=lambda done, total, now: seen.append((done, total, now.clone())),
    )
    assert torch.equal(out[keep], tokens[keep])
    assert 0 <= out.min() <= out.max() < 8
    assert [done for done, _, _ in seen] == list(range(1, len(seen) + 1))
    assert {total for _, total, _ in seen} == {len(seen)}
    assert torch.equal(seen[-1][2], out)


def test_evaluations_are_counted(model: Diffsound, make_text: Any, make_generators: Any) -> None:
    for settings, expected in [
        (SamplingSettings(), 10),
        (SamplingSettings(num_inference_steps=1), 1),
        (SamplingSettings(num_inference_steps=10), 10),
        (SamplingSettings(stride=3), 4),
        (SamplingSettings(sampler="confidence", num_inference_steps=6), 6),
        (SamplingSettings(sampler="official", stride=3), 4),
    ]:
        calls: list[int] = []
        count = partial(lambda seen, *_: seen.append(1), calls)
        handle = model.transformer.register_forward_hook(count)
        model.generate(make_text([2]), GRID, make_generators([0]), settings)
        handle.remove()
        assert len(calls) == expected


@pytest.mark.parametrize(
    ("transition", "masked"), [("uniform", 0.0), ("mask", 1.0), ("mask_uniform", 0.7)]
)
def test_the_chain_starts_from_the_stationary_distribution(
    make_text: Any, make_generators: Any, transition: str, masked: float
) -> None:
    """Algorithm 2, line 2: x_T is drawn from p(x_T), not set to the mask."""
    schedule = ScheduleConfig.model_validate({"transition": transition, "gamma_end": 0.7})
    model = build(schedule=schedule)
    seen: list[torch.Tensor] = []
    model.transformer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
    settings = SamplingSettings(num_inference_steps=1)
    model.generate(make_text([3]), (2, 4000), make_generators([0]), settings)
    shares = torch.bincount(seen[0].flatten(), minlength=9) / 8000
    assert shares[8] == pytest.approx(masked, abs=0.025)
    expected = torch.full((8,), (1 - masked) / 8)
    torch.testing.assert_close(shares[:8], expected, rtol=0, atol=0.015)


def test_a_small_start_step_stays_near(make_text: Any, make_generators: Any) -> None:
    model = build()
    # A network that trusts what it sees, as a trained one does when little is noised.
    model.transformer.register_forward_hook(
        lambda _, inputs, __: 20.0 * torch.nn.functional.one_hot(inputs[0], 9)[..., :8]
    )
    tokens = torch.randint(8, (1, 2, 60))
    keep = torch.zeros_like(tokens, dtype=torch.bool)
    same = []
    for start_step in (1, 10):
        known = Known(tokens, keep, start_step)
        out = model.generate(make_text([3]), (2, 60), make_generators([0]), known=known)
        same.append((out == tokens).float().mean())
    assert same[0] > 0.8 > same[1] + 0.3


def overfit(model: Diffsound, tokens: torch.Tensor, text: Any, steps: int) -> float:
    """Train on a handful of clips; the mean loss of the last tenth of the steps."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator, losses = torch.Generator().manual_seed(0), []
    for _ in range(steps):
        loss = model.loss(tokens, text, generator).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    return sum(losses[-steps // 10 :]) / (steps // 10)


@pytest.mark.parametrize(
    ("position", "loss"),
    [
        ("cell", LossConfig()),
        ("column", LossConfig(variant="simplified")),
        ("cell", LossConfig(auxiliary=5e-4, adaptive=True, importance=True)),
    ],
)
def test_it_learns_which_text_means_which_tokens(
    make_text: Any, make_generators: Any, position: str, loss: LossConfig
) -> None:
    torch.manual_seed(0)
    model = Diffsound(
        DiffsoundConfig.tiny().model_copy(update={"position": position, "loss": loss})
    )
    text = make_text([3, 4])
    tokens = torch.randint(8, (2, 2, 5))
    before = model.loss(tokens.repeat(16, 1, 1), text[[0, 1] * 16], torch.Generator()).loss.item()
    after = overfit(model, tokens.repeat(4, 1, 1), text[[0, 1] * 4], 80)
    assert after < 0.35 * before
    for settings in (
        SamplingSettings(),
        SamplingSettings(sampler="confidence", num_inference_steps=4),
    ):
        out = model.generate(text, (2, 5), make_generators([0, 1]), settings)
        assert (out == tokens).float().mean() > 0.85


def test_importance_is_recorded_in_training_only(make_text: Any) -> None:
    model = build(loss=LossConfig(importance=True))
    assert model.times is not None
    tokens, text = torch.randint(8, (4, *GRID)), make_text([2, 3, 1, 4])
    model.eval().loss(tokens, text)
    assert model.times.count.sum() == 0
    model.train().loss(tokens, text)
    assert model.times.count.sum() == 4
    assert "times.history" in model.state_dict()


def test_loss_is_repeatable_and_per_item(model: Diffsound, make_text: Any) -> None:
    tokens, text = torch.randint(8, (4, *GRID)), make_text([2, 3, 1, 4])
    one = model.loss(tokens, text, torch.Generator().manual_seed(5))
    two = model.loss(tokens, text, torch.Generator().manual_seed(5))
    assert torch.equal(one.per_item, two.per_item)
    torch.testing.assert_close(one.per_item.mean(), one.loss.detach())
    assert set(one.logs) == {"kl", "x0_nll"}


def test_times_are_uniform_and_cover_a_batch(model: Diffsound) -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack([model._draw_times(5, generator)[0] for _ in range(2000)])
    for item in range(5):  # each item alone is uniform over 1..10
        counts = torch.bincount(drawn[:, item], minlength=11)[1:]
        assert (counts - 200).abs().max() < 60  # four standard deviations
    assert all(len(set(times.tolist())) == 5 for times in drawn)


def test_dropout_is_off_while_generating(make_text: Any, make_generators: Any) -> None:
    model = build(dropout=0.5).train()
    text = make_text([2])
    first = model.generate(text, GRID, make_generators([0]))
    assert torch.equal(first, model.generate(text, GRID, make_generators([0])))
    assert model.training


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (SamplingSettings(num_inference_steps=11), "num_inference_steps must be from 1 to 10"),
        (SamplingSettings(stride=11), "stride must be from 1 to 10"),
        (SamplingSettings(stride=2, num_inference_steps=2), "not both"),
        (SamplingSettings(guidance_scale=2.0), "needs a negative text"),
        (SamplingSettings(remask=0.2), "remask works with"),
        (SamplingSettings(sampler="official", num_inference_steps=5), "takes a stride"),
        (SamplingSettings(sampler="official", top_k=5), "takes truncation"),
    ],
)
def test_settings_it_cannot_use_are_refused_in_one_line(
    model: Diffsound,
    make_text: Any,
    make_generators: Any,
    settings: SamplingSettings,
    message: str,
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        model.generate(make_text([2]), GRID, make_generators([0]), settings)
    assert "\n" not in str(caught.value)


def test_bad_requests_are_refused_in_one_line(
    model: Diffsound, make_text: Any, make_generators: Any
) -> None:
    text, seeds = make_text([2]), make_generators([0])
    tokens = torch.zeros(1, *GRID, dtype=torch.long)
    keep = torch.zeros(1, *GRID, dtype=torch.bool)
    guided = SamplingSettings(guidance_scale=2.0)
    with pytest.raises(InputError, match="grids of 2 rows"):
        model.generate(text, (3, 7), seeds)
    with pytest.raises(InputError, match="at least 1 column"):
        model.generate(text, (2, 0), seeds)
    with pytest.raises(InputError, match="one generator per text"):
        model.generate(text, GRID, make_generators([0, 1]))
    with pytest.raises(InputError, match="has 12 features"):
        model.generate(make_text([2], dim=12), GRID, seeds)
    with pytest.raises(InputError, match="no tokens at all"):
        model.generate(make_text([2, 0]), GRID, make_generators([0, 1]))
    with pytest.raises(InputError, match="2 negative texts given for 1"):
        model.generate(text, GRID, seeds, guided, negative=make_text([2, 2]))
    with pytest.raises(InputError, match="known tokens have shape"):
        model.generate(text, GRID, seeds, known=Known(tokens[:, :1], keep))
    with pytest.raises(InputError, match="another codec"):
        model.generate(text, GRID, seeds, known=Known(tokens + 8, keep))
    with pytest.raises(InputError, match="must be bool"):
        model.generate(text, GRID, seeds, known=Known(tokens, keep.long()))
    with pytest.raises(InputError, match="start_step must be from 1"):
        model.generate(text, GRID, seeds, known=Known(tokens, keep, 11))


def test_samplers_that_need_another_matrix(make_text: Any, make_generators: Any) -> None:
    model = build(schedule=ScheduleConfig(transition="uniform"))
    for name in ("confidence", "official"):
        with pytest.raises(InputError, match="needs a model trained with"):
            model.generate(
                make_text([2]), GRID, make_generators([0]), SamplingSettings(sampler=name)
            )


@pytest.mark.parametrize("transition", ["uniform", "mask", "mask_uniform"])
@pytest.mark.parametrize("kind", ["linear", "quarter"])
def test_every_schedule_trains_and_samples(
    make_text: Any, make_generators: Any, transition: str, kind: str
) -> None:
    model = build(schedule=ScheduleConfig.model_validate({"kind": kind, "transition": transition}))
    loss = model.loss(torch.randint(8, (4, *GRID)), make_text([2, 1, 3, 2])).loss
    assert loss.isfinite()
    out = model.generate(make_text([2]), GRID, make_generators([0]))
    assert 0 <= out.min() <= out.max() < 8
