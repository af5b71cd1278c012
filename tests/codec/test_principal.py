"""A codec's first weights from principal components and k-means."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.cluster.vq import kmeans2
from torch import Tensor

from diffsound.codec.codebook import Codebooks
from diffsound.codec.codec import Codec
from diffsound.codec.config import CodecConfig, LinearConfig, QuantizerConfig
from diffsound.codec.principal import principal_start
from diffsound.codec.quantizer import beam_search
from diffsound.errors import ConfigError, DataError

BANDS, STRIDE, LATENT, SIZE = 6, 4, 5, 8


def make_config(**quantizer: object) -> CodecConfig:
    settings: dict[str, object] = {
        "layout": "residual",
        "rows": 3,
        "codebook_size": SIZE,
        "code_dim": LATENT,
        "update": "ema",
    }
    return CodecConfig(
        n_mels=BANDS,
        backbone=LinearConfig(time_stride=STRIDE, latent=LATENT),
        quantizer=QuantizerConfig.model_validate(settings | quantizer),
    )


def some_mels(clips: int = 24) -> Tensor:
    """Mels in [0, 1] that vary in a few directions mostly."""
    generator = torch.Generator().manual_seed(1)
    patterns = torch.rand(4, BANDS, 40, generator=generator)
    shares = torch.rand(clips, 4, generator=generator)
    noise = torch.rand(clips, BANDS, 40, generator=generator)
    return torch.einsum("nk,kbl->nbl", shares, patterns) / 4 + 0.1 * noise


def started(mels: Tensor, **quantizer: object) -> Codec:
    torch.manual_seed(0)
    codec = Codec(make_config(**quantizer)).eval()
    principal_start(codec, mels, torch.Generator().manual_seed(0))
    return codec


@torch.no_grad()
def test_the_linear_maps_are_the_principal_components() -> None:
    mels = some_mels()
    codec = started(mels)
    made = codec.decoder(codec.encoder(2 * mels - 1)).numpy()
    # The slow form: every column as a row of a matrix, its singular vectors by numpy.
    columns = (2 * mels - 1).numpy().reshape(len(mels), BANDS, -1, STRIDE).transpose(0, 2, 1, 3)
    mean = columns.mean((0, 1, 3))[:, None]
    rows = (columns - mean).reshape(-1, BANDS * STRIDE).astype(np.float64)
    vectors = np.linalg.svd(rows, full_matrices=False)[2][:LATENT]
    expected = (rows @ vectors.T @ vectors).reshape(columns.shape) + mean
    expected = expected.transpose(0, 2, 1, 3).reshape(made.shape)
    assert np.abs(made - expected).max() < 1e-4


@torch.no_grad()
def test_it_codes_better_than_random_weights_and_each_row_helps() -> None:
    mels = some_mels()
    codec = started(mels)
    torch.manual_seed(0)
    drawn = Codec(make_config()).eval()
    error = (codec(mels).mel - mels).square().mean()
    assert error < 0.3 * mels.var()
    assert error < 0.1 * (drawn(mels).mel - mels).square().mean()
    latent = codec.encoder(2 * mels - 1)[:, :, 0]
    tokens, left = codec.encode(mels), [latent.square().mean()]
    for rows in range(1, 4):
        stages = list(codec.quantizer.stages)[:rows]
        codes = sum(
            stage.lookup(tokens[:, i].reshape(1, -1))[0]  # type: ignore[operator]
            for i, stage in enumerate(stages)
        )
        assert isinstance(codes, Tensor)
        codes = codes.unflatten(0, (len(mels), -1)).transpose(1, 2)
        left.append((latent - codes).square().mean())
    assert left[3] < left[2] < left[1] < left[0]


def test_the_same_mels_give_the_same_codec() -> None:
    first, second = (started(some_mels()).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_k_means_is_as_good_as_scipys() -> None:
    generator = torch.Generator().manual_seed(2)
    centres = 4 * torch.randn(SIZE, LATENT, generator=generator)
    points = centres.repeat(60, 1) + torch.randn(SIZE * 60, LATENT, generator=generator)
    config = make_config().quantizer
    books = Codebooks(config, 1)
    books.fit(points[None], 30, generator)
    ours = (points - books.lookup(books.nearest(points[None]))[0]).square().sum(1).mean()
    best = min(
        float(np.square(points.numpy() - found[labels]).sum(1).mean())
        for found, labels in (
            kmeans2(points.numpy(), SIZE, iter=30, minit="points", seed=seed) for seed in range(5)
        )
    )
    assert float(ours) < 1.6 * best
    # Training goes on from there: the codes are their running means, used once each on average.
    assert torch.allclose(books.total / books.count[..., None], books.codes, atol=1e-4)
    assert float(books.count.mean()) == pytest.approx(1)


def test_k_means_moves_codes_that_nobody_chose() -> None:
    """All but one of the first codes fall on one spot; none stays idle."""
    points = torch.cat([torch.zeros(500, LATENT), torch.eye(LATENT).repeat(2, 1) * 9])
    books = Codebooks(make_config().quantizer, 1)
    books.fit(points[None], 60, torch.Generator().manual_seed(0))
    rest = points - books.lookup(books.nearest(points[None]))[0]
    assert rest.square().sum() < 0.5 * points.square().sum()


def test_a_beam_of_one_is_greedy_and_a_full_one_is_exact() -> None:
    generator = torch.Generator().manual_seed(3)
    books = torch.randn(3, 4, 2, generator=generator)
    vectors = torch.randn(50, 2, generator=generator)
    greedy = []
    rest = vectors
    for book in books:
        greedy.append(torch.cdist(rest, book).argmin(1))
        rest = rest - book[greedy[-1]]
    assert torch.equal(beam_search(vectors, books, 1), torch.stack(greedy, 1))
    ways = torch.tensor(list(itertools.product(range(4), repeat=3)))
    sums = books[torch.arange(3), ways].sum(1)
    expected = ways[torch.cdist(vectors, sums).argmin(1)]
    assert torch.equal(beam_search(vectors, books, 64), expected)


@torch.no_grad()
def test_a_beam_codes_nearer_and_training_stays_greedy() -> None:
    mels = some_mels()
    greedy, searched = started(mels), started(mels, beam=8)
    assert torch.equal(greedy.quantizer.stages[0].codes, searched.quantizer.stages[0].codes)
    distances = [codec(mels).commitment_loss for codec in (greedy, searched)]
    assert distances[1] < distances[0]
    assert not torch.equal(greedy.encode(mels), searched.encode(mels))
    taught = [
        codec.train()(mels, torch.Generator().manual_seed(0)).tokens for codec in (greedy, searched)
    ]
    assert torch.equal(*taught)
    # A column's tokens do not depend on its neighbours.
    searched.eval()
    assert torch.equal(searched.encode(mels[..., STRIDE:]), searched.encode(mels)[..., 1:])


@pytest.mark.parametrize(
    "config",
    [
        make_config(code_dim=LATENT + 1),
        make_config(layout="product"),
        CodecConfig.tiny(n_mels=BANDS),
        CodecConfig(n_mels=16),
    ],
)
def test_other_codecs_have_no_such_start(config: CodecConfig) -> None:
    mels = torch.rand(8, config.n_mels, 40)
    with pytest.raises(ConfigError, match="linear"):
        principal_start(Codec(config), mels, torch.Generator())


def test_a_few_columns_are_too_few() -> None:
    with pytest.raises(DataError, match="5 columns"):
        started(some_mels(1)[..., : 5 * STRIDE])


def test_a_beam_is_for_residual_codes() -> None:
    with pytest.raises(ValueError, match="beam"):
        QuantizerConfig(beam=2)
