"""The AR decoder: causality, cache, forcing, delay pattern, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from diffsound.decoder import SamplingSettings
from diffsound.decoder.ar import ARDecoder
from diffsound.decoder.config import ARConfig
from diffsound.decoder.sampling import Known
from diffsound.errors import InputError

GRID = (3, 5)
KINDS: list[dict[str, Any]] = [
    {"condition": "tokens"},
    {"condition": "pooled"},
    {"condition": "pooled", "position_scheme": "official"},
    {"condition": "tokens", "position": "column"},
    {"condition": "pooled", "position": "column", "code_width": 8},
]
SETTINGS = [
    SamplingSettings(),
    SamplingSettings(temperature=0.7, top_k=4, truncation=0.9),
    SamplingSettings(guidance_scale=2.0),
]


def build(**changes: Any) -> ARDecoder:
    torch.manual_seed(0)
    model = ARDecoder(ARConfig.tiny(rows=3).model_copy(update=changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_cache_and_batch_change_nothing(
    make_text: Any, make_generators: Any, kind: dict[str, Any], settings: SamplingSettings
) -> None:
    model = build(**kind)
    text, negative = make_text([4, 1, 3]), make_text([2, 5, 1], seed=1)
    together = model.generate(text, GRID, make_generators([4, 5, 6]), settings, negative=negative)
    assert together.shape == (3, *GRID)
    assert 0 <= together.min() <= together.max() < 8
    for item in range(3):
        one = slice(item, item + 1)
        for use_cache in (True, False):
            model.use_cache = use_cache
            alone = model.generate(
                text[one], GRID, make_generators([4 + item]), settings, negative=negative[one]
            )
            assert torch.equal(alone[0], together[item])


@pytest.mark.parametrize("kind", KINDS)
def test_a_cell_sees_only_earlier_cells(make_text: Any, kind: dict[str, Any]) -> None:
    model, text = build(**kind), make_text([3])
    tokens = torch.randint(8, (1, *GRID))
    logits = model(tokens, text)
    delayed = kind.get("position") == "column"

    def place(row: int, column: int) -> int:
        return column + row if delayed else column * 3 + row

    for row in range(3):
        for column in range(5):
            changed = tokens.clone()
            changed[0, row, column] = (changed[0, row, column] + 1) % 8
            moved = (model(changed, text) - logits).abs().amax(-1)[0] > 1e-6
            for other_row in range(3):
                for other_column in range(5):
                    later = place(other_row, other_column) > place(row, column)
                    assert bool(moved[other_row, other_column]) == later


@pytest.mark.parametrize("kind", KINDS)
def test_padding_does_not_matter(make_text: Any, kind: dict[str, Any]) -> None:
    model, text = build(**kind), make_text([3, 2])
    tokens = torch.randint(8, (2, *GRID))
    torch.testing.assert_close(
        model(tokens, text.pad_to(9)), model(tokens, text), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("kind", KINDS)
def test_drawing_follows_the_teacher_forced_logits(
    make_text: Any, make_generators: Any, kind: dict[str, Any]
) -> None:
    model, text = build(**kind), make_text([3])
    greedy = model.generate(text, GRID, make_generators([0]), SamplingSettings(temperature=0.0))
    assert torch.equal(model(greedy, text).argmax(-1), greedy)


@pytest.mark.parametrize("kind", KINDS)
def test_kept_cells_stay_and_steer_what_follows(
    make_text: Any, make_generators: Any, kind: dict[str, Any]
) -> None:
    model, text = build(**kind), make_text([3, 2])
    keep = torch.zeros(2, 3, 15, dtype=torch.bool)
    keep[:, 1:, :5] = True
    outs = []
    for code in (0, 7):
        tokens = torch.full((2, 3, 15), code)
        seen: list[torch.Tensor] = []
        out = model.generate(
            text,
            (3, 15),
            make_generators([0, 1]),
            known=Known(tokens, keep),
            callback=lambda done, total, now, seen=seen: seen.append(now.clone()),
        )
        assert torch.equal(out[keep], tokens[keep])
        assert torch.equal(seen[-1], out)
        assert (seen[0] == 8).any()  # cells still to come hold the mask index
        outs.append(out)
    assert not torch.equal(outs[0][~keep], outs[1][~keep])


@pytest.mark.parametrize("columns", [1, 6, 11])
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_columns(
    make_text: Any, make_generators: Any, kind: dict[str, Any], columns: int
) -> None:
    out = build(**kind).generate(make_text([2]), (3, columns), make_generators([0]))
    assert out.shape == (1, 3, columns)


def test_loss_is_the_cross_entropy_of_the_next_token(make_text: Any) -> None:
    model, text = build(), make_text([3, 2])
    tokens = torch.randint(8, (2, *GRID))
    loss = model.loss(tokens, text)
    log_p = model(tokens, text).log_softmax(-1)
    for item in range(2):
        nll = [
            -log_p[item, row, column, tokens[item, row, column]]
            for row in range(3)
            for column in range(5)
        ]
        torch.testing.assert_close(loss.per_item[item], torch.stack(nll).mean().detach())
    torch.testing.assert_close(loss.loss, loss.per_item.mean())


@pytest.mark.parametrize("position", ["cell", "column"])
def test_it_learns_which_text_means_which_tokens(
    make_text: Any, make_generators: Any, position: str
) -> None:
    torch.manual_seed(0)
    model = ARDecoder(ARConfig.tiny(rows=3).model_copy(update={"position": position}))
    text, tokens = make_text([3, 4]), torch.randint(8, (2, *GRID))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        model.loss(tokens, text).loss.backward()
        optimizer.step()
    out = model.generate(text, GRID, make_generators([0, 1]), SamplingSettings(truncation=0.9))
    assert torch.equal(out, tokens)


def test_checkpointing_and_autocast(make_text: Any) -> None:
    model, text = build(position="column").train(), make_text([3, 2])
    tokens = torch.randint(8, (2, *GRID))
    plain = torch.autograd.grad(model.loss(tokens, text).loss, list(model.parameters()))
    model.transformer.gradient_checkpointing = True
    again = torch.autograd.grad(model.loss(tokens, text).loss, list(model.parameters()))
    for one, other in zip(plain, again, strict=True):
        torch.testing.assert_close(one, other)
    with torch.autocast("cpu", torch.bfloat16):
        low = model.loss(tokens, text).loss
    torch.testing.assert_close(low, model.loss(tokens, text).loss, atol=0.1, rtol=0.05)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (SamplingSettings(num_inference_steps=5), "leave out num_inference_steps"),
        (SamplingSettings(stride=2), "leave out num_inference_steps and stride"),
        (SamplingSettings(sampler="confidence"), "leave out 'confidence'"),
        (SamplingSettings(remask=0.1), "cannot remask"),
    ],
)
def test_diffusion_settings_are_refused(
    make_text: Any, make_generators: Any, settings: SamplingSettings, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        build().generate(make_text([2]), GRID, make_generators([0]), settings)


def test_start_step_is_refused(make_text: Any, make_generators: Any) -> None:
    tokens = torch.zeros(1, *GRID, dtype=torch.long)
    known = Known(tokens, tokens.bool(), 3)
    with pytest.raises(InputError, match="cannot vary"):
        build().generate(make_text([2]), GRID, make_generators([0]), known=known)
