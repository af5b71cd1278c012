"""Figure 6 and the steps of a denoising, as pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from diffsound.errors import InputError
from diffsound.evaluation.pages import denoising, figure_of_runs, side_by_side
from diffsound.generation.jobs import unfinished_mel
from diffsound.generation.pipeline import TextToSound
from listening_support import make_runs


def test_columns_and_rows(tmp_path: Path) -> None:
    """A bright mel is drawn where its row and column meet; a missing one leaves the paper white."""
    bright, dark = np.ones((8, 20)), np.zeros((8, 20))
    rows = [("a dog – barks", {"real": bright, "ours": dark}), ("rain", {"ours": bright})]
    with Image.open(side_by_side(tmp_path / "six.png", rows)) as picture:
        middle = [
            [picture.getpixel((160 + 310 * column, 106 + 148 * row)) for column in (0, 1)]
            for row in (0, 1)
        ]
    assert middle == [[(252, 253, 191), (0, 0, 4)], [(255, 255, 255), (252, 253, 191)]]
    with pytest.raises(InputError, match="no mel"):
        side_by_side(tmp_path / "none.png", [])


def test_figure_six_of_runs(tmp_path: Path) -> None:
    runs = make_runs(tmp_path)
    figure = figure_of_runs(tmp_path / "figure-6.png", runs, texts=2)
    with Image.open(figure) as picture:
        assert picture.size == (10 + 3 * 310, 2 * 10 + 18 + 2 * 148)


def test_steps_of_a_sound(tmp_path: Path, pipeline: TextToSound) -> None:
    options = {"duration": 0.5, "num_inference_steps": 5, "seed": 3}
    moving = denoising(tmp_path / "steps.gif", pipeline, "a dog", frames=3, **options)
    with Image.open(moving) as picture:
        assert picture.format == "GIF"
        assert getattr(picture, "n_frames", 1) == 3
    still = denoising(tmp_path / "steps.png", pipeline, "a dog", frames=9, **options)
    with Image.open(still) as picture:
        assert picture.size[0] == 10 + 5 * 310
    with pytest.raises(InputError, match=r"\.gif or \.png"):
        denoising(tmp_path / "steps.bmp", pipeline, "a dog")


def test_what_is_masked_is_dark(pipeline: TextToSound) -> None:
    codec = pipeline.bundle.codec
    tokens = torch.zeros(codec.rows, 6, dtype=torch.int64)
    full = unfinished_mel(pipeline, tokens)
    tokens[:, 3:] = codec.codebook_size
    half = unfinished_mel(pipeline, tokens)
    edge = 3 * codec.time_stride
    np.testing.assert_array_equal(half[:, :edge], full[:, :edge])
    assert not half[:, edge:].any()
    assert full[:, edge:].any()
