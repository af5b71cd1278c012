"""Codebooks against slow, obvious forms."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, multiprocessing

from diffsound.codec import codebook
from diffsound.codec.codebook import Codebooks, nearest
from diffsound.codec.config import QuantizerConfig


def ema_config(**changes: object) -> QuantizerConfig:
    base = {"codebook_size": 8, "code_dim": 3, "update": "ema", "decay": 0.9}
    return QuantizerConfig.model_validate(base | changes)


@settings(max_examples=30, deadline=None)
@given(
    groups=st.integers(1, 3),
    count=st.integers(1, 20),
    size=st.integers(1, 9),
    dim=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_nearest_is_the_least_distance(
    groups: int, count: int, size: int, dim: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(groups, count, dim, generator=generator, dtype=torch.float64)
    codes = torch.randn(groups, size, dim, generator=generator, dtype=torch.float64)
    distances = (vectors[:, :, None] - codes[:, None]).square().sum(-1)
    assert torch.equal(nearest(vectors, codes), distances.argmin(-1))


def test_nearest_in_blocks_is_nearest_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, codes = torch.randn(2, 50, 4), torch.randn(2, 7, 4)
    whole = nearest(vectors, codes)
    monkeypatch.setattr(codebook, "_BLOCK", 40)  # two vectors at a time
    assert torch.equal(nearest(vectors, codes), whole)


def test_codes_follow_the_running_mean_of_their_vectors() -> None:
    books = Codebooks(ema_config(restart_threshold=0), groups=2)
    books.codes.copy_(torch.randn(2, 8, 3))
    count = [[0.0] * 8 for _ in range(2)]
    total = [[[0.0] * 3 for _ in range(8)] for _ in range(2)]
    for seed in range(4):
        vectors = torch.randn(2, 11, 3, generator=torch.Generator().manual_seed(seed))
        before = books.codes.clone()
        indices, chosen = books(vectors)
        for group in range(2):
            for code in range(8):
                mine = [vectors[group, n] for n in range(11) if indices[group, n] == code]
                summed = torch.stack(mine).sum(0) if mine else torch.zeros(3)
                count[group][code] = 0.9 * count[group][code] + 0.1 * len(mine)
                for axis in range(3):
                    old = total[group][code][axis]
                    total[group][code][axis] = 0.9 * old + 0.1 * float(summed[axis])
                expected = before[group, code]
                if count[group][code] > 0:
                    expected = torch.tensor(total[group][code]) / count[group][code]
                torch.testing.assert_close(books.codes[group, code], expected, atol=1e-5, rtol=1e-5)
        # What was emitted is the code as it was when it was chosen.
        assert torch.equal(chosen, torch.stack([before[g][indices[g]] for g in range(2)]))


def test_first_batch_places_every_code_on_a_latent() -> None:
    books = Codebooks(ema_config(), groups=2)
    vectors = 5 + torch.randn(2, 20, 3)
    indices, chosen = books(vectors, torch.Generator().manual_seed(1))
    assert books.restart_count == 16
    for group in range(2):
        assert len(set(indices[group].tolist())) == 8
        assert all((vectors[group] == code).all(-1).any() for code in chosen[group])


def test_a_collapsed_codebook_recovers() -> None:
    books = Codebooks(ema_config(), groups=1)
    # All codes far away but one, which therefore takes everything; counts say the rest are in use.
    books.codes.fill_(100.0)
    books.codes[0, 0] = 0.0
    books.count.fill_(1.0)
    books.total.copy_(books.codes)
    generator = torch.Generator().manual_seed(0)
    used = []
    for _ in range(80):
        indices, _ = books(torch.randn(1, 16, 3, generator=generator), generator)
        used.append(len(indices.unique()))
    assert used[0] == 1
    assert used[-1] >= 7
    assert books.restart_count >= 7


def test_a_code_in_use_is_not_restarted() -> None:
    books = Codebooks(ema_config(), groups=1)
    vectors = torch.eye(3).repeat(8, 1)[None] * torch.arange(1, 25)[None, :, None]
    for _ in range(3):
        books(vectors, torch.Generator().manual_seed(0))
    assert books.restart_count == 8


def test_fewer_latents_than_codes_still_fill_the_codebook() -> None:
    books = Codebooks(ema_config(), groups=1)
    vectors = torch.randn(1, 3, 3)
    books(vectors)
    assert torch.cdist(books.codes[0], vectors[0]).amin(1).max() < 1e-3


def test_restart_is_decided_by_the_generator() -> None:
    vectors = torch.randn(1, 20, 3)
    first, second, third = (Codebooks(ema_config(), groups=1) for _ in range(3))
    first(vectors, torch.Generator().manual_seed(3))
    second(vectors, torch.Generator().manual_seed(3))
    third(vectors, torch.Generator().manual_seed(4))
    assert torch.equal(first.codes, second.codes)
    assert not torch.equal(first.codes, third.codes)


def test_evaluation_changes_nothing() -> None:
    books = Codebooks(ema_config(), groups=1).eval()
    before = copy.deepcopy(books.state_dict())
    books(torch.randn(1, 20, 3))
    assert all(torch.equal(before[key], value) for key, value in books.state_dict().items())


def test_resume_continues_exactly() -> None:
    batches = [torch.randn(1, 20, 3) for _ in range(4)]
    whole, first = Codebooks(ema_config(), groups=1), Codebooks(ema_config(), groups=1)
    resumed = Codebooks(ema_config(), groups=1)
    generator = torch.Generator().manual_seed(0)
    for batch in batches:
        whole(batch, generator)
    generator.manual_seed(0)
    for batch in batches[:2]:
        first(batch, generator)
    resumed.load_state_dict(first.state_dict())
    for batch in batches[2:]:
        resumed(batch, generator)
    assert torch.equal(whole.codes, resumed.codes)
    assert whole.restart_count == resumed.restart_count


def test_a_broken_batch_does_not_live_on_in_the_codes() -> None:
    books = Codebooks(ema_config(), groups=1)
    books(torch.full((1, 20, 3), torch.nan))  # would place every code
    assert books.codes.isfinite().all()
    books(torch.randn(1, 20, 3))
    before = books.codes.clone()
    books(torch.full((1, 20, 3), torch.inf))  # would move every mean
    assert torch.equal(books.codes, before)


def _train_part(rank: int, folder: Path, batches: list[Tensor]) -> Codebooks:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2
    )
    try:
        books = Codebooks(ema_config(), groups=2)
        generator = torch.Generator().manual_seed(7 if rank == 0 else 1234)
        for batch in batches:
            # Uneven on purpose: the last batch of an epoch often is.
            books(batch[:, :7] if rank == 0 else batch[:, 7:], generator)
    finally:
        torch.distributed.destroy_process_group()
    return books


def _second_process(_: int, folder: Path, batches: list[Tensor]) -> None:
    torch.save(_train_part(1, folder, batches).state_dict(), folder / "second.pt")


def test_two_processes_learn_as_one_with_both_batches(tmp_path: Path) -> None:
    batches = [torch.randn(2, 20, 3) for _ in range(3)]
    alone = Codebooks(ema_config(), groups=2)
    generator = torch.Generator().manual_seed(7)
    for batch in batches:
        alone(batch, generator)
    process = multiprocessing.spawn(_second_process, args=(tmp_path, batches), join=False)
    first = _train_part(0, tmp_path, batches).state_dict()
    while not process.join():
        pass
    second = torch.load(tmp_path / "second.pt", weights_only=True)
    for key, value in alone.state_dict().items():
        torch.testing.assert_close(first[key], value)
        assert torch.equal(first[key], second[key])
