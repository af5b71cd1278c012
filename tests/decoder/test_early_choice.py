"""Choosing among takes before they are finished."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from diffsound.decoder import SamplingSettings, build_decoder
from diffsound.decoder.config import ARConfig, DiffsoundConfig, LossConfig, ScheduleConfig
from diffsound.decoder.diffsound import Diffsound
from diffsound.decoder.sampling import Choice, kept_parts
from diffsound.errors import InputError
from diffsound.text.features import TextFeatures

ROWS, COLUMNS, CODES, TEXTS, TAKES = 3, 20, 8, 2, 3


def build(pooled: bool = True, shares: tuple[float, ...] | None = (5, 3, 2)) -> Diffsound:
    config = DiffsoundConfig.tiny(ROWS, CODES).model_copy(
        update={
            "schedule": ScheduleConfig(transition="mask", row_shares=shares),
            "loss": LossConfig(variant="simplified"),
            "position": "column",
            "code_width": 4,
            "pooled_text": pooled,
        }
    )
    torch.manual_seed(0)
    decoder = build_decoder(config)
    assert isinstance(decoder, Diffsound)
    return decoder


def text(count: int, seed: int = 1) -> TextFeatures:
    features = torch.randn(count, 4, 16, generator=torch.Generator().manual_seed(seed))
    return TextFeatures(features, torch.ones(count, 4, dtype=torch.bool), features.mean(1))


def draw(
    decoder: torch.nn.Module,
    kept: Sequence[int] | None,
    *,
    share: float = 0.8,
    seen: list[torch.Tensor] | None = None,
    told: list[tuple[int, int, int]] | None = None,
    **settings: float,
) -> torch.Tensor:
    """Two texts, three takes each; `kept` go on after `share`."""

    def best(tokens: torch.Tensor) -> torch.Tensor:
        assert kept is not None
        if seen is not None:
            seen.append(tokens.clone())
        return torch.tensor(kept)

    return decoder.generate(
        text(TEXTS).repeat(TAKES),
        (ROWS, COLUMNS),
        [torch.Generator().manual_seed(seed) for seed in range(TEXTS * TAKES)],
        SamplingSettings(**settings),  # type: ignore[arg-type]
        negative=text(1, 2).repeat(TEXTS * TAKES),
        together=TAKES,
        choice=None if kept is None else Choice(share, best),
        callback=None
        if told is None
        else lambda done, total, tokens: told.append((done, total, len(tokens))),
    )


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize(
    "settings",
    [{}, {"guidance_scale": 3.0}, {"guidance_scale": 3.0, "guided_share": 0.5}],
    ids=["plain", "guided", "partly guided"],
)
def test_early_choice_leaves_the_chosen_take_unchanged(
    pooled: bool, settings: dict[str, float]
) -> None:
    decoder = build(pooled)
    everything = draw(decoder, None, **settings)
    seen: list[torch.Tensor] = []
    kept = draw(decoder, [1, 5], seen=seen, **settings)
    assert torch.equal(kept, everything[[1, 5]])
    # The judge sees the rows that are drawn: two of the three after four fifths of the chain.
    assert torch.equal(seen[0], everything[:, :2])


@pytest.mark.parametrize(("share", "rows"), [(0.0, 1), (0.5, 1), (0.6, 1), (0.8, 2), (1.0, 3)])
def test_it_compares_when_a_row_is_there_and_not_before(share: float, rows: int) -> None:
    seen: list[torch.Tensor] = []
    decoder = build()
    kept = draw(decoder, [0, 3], share=share, seen=seen)
    assert [tuple(tokens.shape) for tokens in seen] == [(TEXTS * TAKES, rows, COLUMNS)]
    assert int(seen[0].max()) < CODES, "every cell the judge sees is drawn"
    assert torch.equal(kept, draw(decoder, None)[[0, 3]])


def test_progress_counts_the_whole_chain_once() -> None:
    told: list[tuple[int, int, int]] = []
    draw(build(), [2, 4], told=told, num_inference_steps=10)
    assert [done for done, _, _ in told] == list(range(1, 11))
    assert {total for _, total, _ in told} == {10}
    assert [count for _, _, count in told] == [6] * 8 + [2] * 2


def test_what_is_left_of_the_parts() -> None:
    parts = [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert list(kept_parts(parts, [1, 5, 6], paired=True)) == [
        (0, slice(0, 1), [1, 4]),
        (1, slice(1, 2), [2, 5]),
        (2, slice(2, 3), [0, 1]),
    ]
    assert list(kept_parts([slice(0, 6)], [1, 5], paired=False)) == [(0, slice(0, 2), [1, 5])]
    assert list(kept_parts(parts, [4], paired=False)) == [(1, slice(0, 1), [1])]


def test_decoders_that_have_nothing_to_compare_refuse() -> None:
    plain = build(shares=None)
    ar = build_decoder(ARConfig.tiny(ROWS, CODES))
    assert not plain.chooses_early
    assert not ar.chooses_early
    assert build().chooses_early
    with pytest.raises(InputError, match="rows are drawn in turn"):
        draw(plain, [0, 3])
    with pytest.raises(InputError, match="nothing to compare"):
        draw(ar, [0, 3], guidance_scale=2.0)
