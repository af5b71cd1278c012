"""The denoising transformer: caches, masks, positions, columns, precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from diffsound.decoder.config import DiffsoundConfig
from diffsound.decoder.diffsound import DenoisingTransformer
from diffsound.decoder.layers import (
    AdaptiveNorm,
    CellPositions,
    ColumnEmbedding,
    ColumnLogits,
    codes_of,
    gelu2,
    init_weights,
    stretch,
)
from diffsound.text.features import TextFeatures

TOKENS = torch.randint(9, (2, 2, 5), generator=torch.Generator().manual_seed(3))
TIMES = torch.tensor([3, 9])


def tiny(**changes: Any) -> DenoisingTransformer:
    torch.manual_seed(0)
    model = DenoisingTransformer(DiffsoundConfig.tiny().model_copy(update=changes)).eval()
    with torch.no_grad():  # weights of order one make every part matter
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


def run(model: DenoisingTransformer, text: TextFeatures, t: torch.Tensor = TIMES) -> torch.Tensor:
    context = model.read_text(text)
    return model(TOKENS, model.modulations(t, context.pooled), context)


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("position", ["cell", "column"])
def test_items_do_not_see_each_other(make_text: Any, position: str, pooled: bool) -> None:
    model = tiny(position=position, pooled_text=pooled)
    text = make_text([2, 4])
    together = run(model, text)
    for item in range(2):
        context = model.read_text(text[item : item + 1])
        modulations = model.modulations(TIMES[item : item + 1], context.pooled)
        alone = model(TOKENS[item : item + 1], modulations, context)
        torch.testing.assert_close(together[item], alone[0], atol=1e-5, rtol=1e-5)


def test_padding_is_ignored_unless_asked_for(make_text: Any) -> None:
    text = make_text([3, 3])
    longer = text.pad_to(7)
    model = tiny()
    torch.testing.assert_close(run(model, longer), run(model, text), atol=1e-5, rtol=1e-5)
    official = tiny(attend_padding=True)
    assert (run(official, longer) - run(official, text)).abs().max() > 1e-3


def test_text_is_normalised_when_asked_for(make_text: Any) -> None:
    text = make_text([3, 4])
    louder = TextFeatures(text.features * 5, text.mask, text.pooled)
    model = tiny(normalise_text=True)
    torch.testing.assert_close(run(model, louder), run(model, text))
    plain = tiny()
    assert (run(plain, louder) - run(plain, text)).abs().max() > 1e-3


@pytest.mark.parametrize("changes", [{}, {"pooled_text": True}])
def test_time_pooled_text_and_text_all_matter(make_text: Any, changes: dict[str, Any]) -> None:
    model, text = tiny(**changes), make_text([3, 4])
    logits = run(model, text)
    assert (run(model, text, TIMES - 1) - logits).abs().max() > 1e-3
    other = TextFeatures(text.features, text.mask, text.pooled + 1)
    assert bool((run(model, other) - logits).abs().max() > 1e-3) == bool(changes)
    other = TextFeatures(text.features * 2, text.mask, text.pooled)
    assert (run(model, other) - logits).abs().max() > 1e-3


@pytest.mark.parametrize("length", [1, 3, 6, 9, 40])
@pytest.mark.parametrize("position", ["cell", "column"])
def test_any_number_of_columns(make_text: Any, position: str, length: int) -> None:
    model = tiny(position=position)
    tokens = torch.randint(9, (1, 2, length))
    context = model.read_text(make_text([3]))
    logits = model(tokens, model.modulations(TIMES[:1], None), context)
    assert logits.shape == (1, 2, length, 8)
    assert logits.isfinite().all()


def test_stretch_keeps_what_was_learned_and_interpolates_beyond() -> None:
    table = torch.tensor([[0.0], [10.0], [40.0]])
    assert stretch(table, 2).tolist() == [[0.0], [10.0]]
    assert stretch(table, 3).tolist() == table.tolist()
    assert stretch(table, 5).flatten().tolist() == [0.0, 5.0, 10.0, 25.0, 40.0]
    assert stretch(table[:1], 3).flatten().tolist() == [0.0, 0.0, 0.0]


def test_positions_follow_the_grid_or_the_published_scramble() -> None:
    rows, columns = 3, 4
    grid = CellPositions(rows, columns, 2)
    scrambled = CellPositions(rows, columns, 2, scrambled=True)
    for i in range(rows * columns):
        column, row = divmod(i, rows)  # the sequence is time-major
        expected = grid.row.weight[row] + grid.column.weight[column]
        assert torch.equal(grid(columns)[i], expected)
        expected = scrambled.row.weight[i // columns] + scrambled.column.weight[i % columns]
        assert torch.equal(scrambled(columns)[i], expected)


def test_column_parts_against_loops() -> None:
    tokens = torch.randint(5, (2, 4, 3))
    for code_width in (None, 6):
        embedding = ColumnEmbedding(3, 5, 8, code_width)
        head = ColumnLogits(3, 7, 8, code_width)
        head.reset_parameters()
        x, vectors = torch.randn(2, 4, 8), embedding.codes.weight.view(3, 5, -1)
        summed = torch.zeros(2, 4, 8)
        for row in range(3):
            vector = vectors[row][tokens[..., row]]
            if embedding.project is not None:
                part = embedding.project.weight[:, row * 6 : (row + 1) * 6]
                vector = vector @ part.T
            summed += vector
        if embedding.project is not None:
            summed += embedding.project.bias
        torch.testing.assert_close(embedding(tokens), summed)
        folded = embedding.folded()
        assert folded.project is None
        torch.testing.assert_close(folded(tokens), summed)
        for row in range(3):
            size = code_width or 7
            weight = head.project.weight[row * size : (row + 1) * size]
            logits = F.linear(x, weight, head.project.bias[row * size : (row + 1) * size])
            if head.codes is not None:
                logits = logits @ head.codes[row] + head.bias[row]
            torch.testing.assert_close(head(x)[:, :, row], logits)


def test_long_codes_keep_the_directions_in_which_they_differ_most() -> None:
    torch.manual_seed(0)
    books = torch.randn(3, 50, 6) * torch.tensor([4.0, 4, 4, 0.01, 0.01, 0.01])
    sounds = codes_of(books, 3)
    assert sounds.shape == (3, 50, 3)
    short, long = (torch.cdist(x.flatten(0, 1), x.flatten(0, 1)) for x in (sounds, books[..., :3]))
    assert torch.corrcoef(torch.stack((short.flatten(), long.flatten())))[0, 1] > 0.95


def test_columns_may_begin_with_what_their_codes_sound_like() -> None:
    torch.manual_seed(0)
    books = torch.randn(3, 4, 6) * torch.tensor([9.0, 3.0, 1.0])[:, None, None]
    sounds = codes_of(books, 6)
    assert sounds.square().mean() == pytest.approx(1, abs=1e-5)
    # Codes that were far apart stay so, and the first row's stay the largest.
    assert torch.equal(sounds.sign(), books.sign())
    sizes = sounds.square().mean((1, 2))
    assert 9 > sizes[0] / sizes[2] > 1
    embedding, head = ColumnEmbedding(3, 5, 8, 6), ColumnLogits(3, 4, 8, 6)
    for part in (embedding, head):
        part.apply(init_weights)
        part.start_from(sounds)
    # A column is the projection of its codes' sum, whatever their rows.
    assert embedding.project is not None
    tokens = torch.tensor([[[1, 3, 2]]])
    summed = sounds[torch.arange(3), tokens[0, 0]].sum(0)
    expected = F.linear(summed, embedding.project.weight[:, :6], embedding.project.bias)
    torch.testing.assert_close(embedding(tokens)[0, 0], expected)
    assert embedding(torch.full((1, 1, 3), 4)).abs().sum() > 0  # the mask is not nothing
    assert head.codes is not None
    torch.testing.assert_close(head.codes.transpose(1, 2), sounds)


def test_local_looks_at_the_neighbours_only(make_text: Any) -> None:
    """With attention silenced, a column is told by those that the convolutions reach."""
    model = tiny(position="column", local=3)
    plain = tiny(position="column")
    assert sum(p.numel() for p in model.parameters()) > sum(p.numel() for p in plain.parameters())
    with torch.no_grad():
        for block in model.blocks:
            block.self_attention.out.weight.zero_()  # type: ignore[union-attr]
    text = make_text([3, 4])
    context = model.read_text(text)
    tokens = torch.randint(8, (2, 2, 9), generator=torch.Generator().manual_seed(0))
    other = tokens.clone()
    other[:, :, 4] = (other[:, :, 4] + 1) % 8
    times = model.modulations(TIMES, context.pooled)
    changed = (model(tokens, times, context) != model(other, times, context)).any(-1).any(1)
    reach = len(model.blocks)
    assert changed.tolist() == [[abs(column - 4) <= reach for column in range(9)]] * 2


def test_adaptive_norm_shared_and_per_item_agree() -> None:
    norm = AdaptiveNorm(8, 5)
    x, t = torch.randn(3, 4, 8), torch.tensor([2])
    shared = norm(x, norm.modulation(t))
    torch.testing.assert_close(norm(x, norm.modulation(t.expand(3))), shared)
    scale, shift = norm.linear(F.silu(norm.timestep.weight[1])).chunk(2)
    torch.testing.assert_close(shared, F.layer_norm(x, (8,)) * (1 + scale) + shift)


def test_gelu2_is_the_same_with_and_without_gradients() -> None:
    x = torch.linspace(-8, 8, 101)
    with torch.no_grad():
        without = gelu2(x.clone())
    torch.testing.assert_close(without, gelu2(x))
    torch.testing.assert_close(without, x * torch.sigmoid(1.702 * x))


@pytest.mark.parametrize("position", ["cell", "column"])
def test_bfloat16_autocast_is_near_float32(make_text: Any, position: str) -> None:
    model, text = tiny(position=position, pooled_text=True), make_text([2, 4])
    with torch.autocast("cpu", torch.bfloat16):
        low = run(model, text)
    high = run(model, text)
    assert low.isfinite().all()
    assert (low - high).abs().mean() < 0.05 * high.std()


def test_gradient_checkpointing_changes_nothing_but_memory(make_text: Any) -> None:
    text, gradients = make_text([2, 4]), []
    for checkpointing in (False, True):
        model = tiny(pooled_text=True).train()
        model.gradient_checkpointing = checkpointing
        run(model, text).square().mean().backward()
        gradients.append([p.grad for p in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert one is not None
        torch.testing.assert_close(one, other)
