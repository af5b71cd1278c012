"""Steps between columns: measured, and taken out where they should not be."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from diffsound.codec.config import SeamsConfig
from diffsound.codec.seams import Seams, changes, seam_loss, seam_ratio

STRIDE, BANDS = 16, 5


def noisy(seed: int = 0, batch: int = 8, columns: int = 6) -> Tensor:
    """A steady sound: every band at a level of its own, with grain."""
    generator = torch.Generator().manual_seed(seed)
    level = torch.rand(batch, BANDS, 1, generator=generator) * 0.4 + 0.3
    return level + 0.02 * torch.randn(batch, BANDS, columns * STRIDE, generator=generator)


def stepped(mel: Tensor, seed: int = 1, size: float = 0.1) -> Tensor:
    """The same with every column shifted by a level of its own."""
    columns = mel.shape[2] // STRIDE
    generator = torch.Generator().manual_seed(seed)
    shifts = size * torch.randn(*mel.shape[:2], columns, generator=generator)
    return mel + shifts.repeat_interleave(STRIDE, dim=2)


def opened(reach: int = 4) -> Seams:
    """Seams whose last layer is no longer silent."""
    torch.manual_seed(0)
    seams = Seams(SeamsConfig(width=8, reach=reach, steady=1.0), STRIDE, BANDS)
    torch.nn.init.normal_(seams.last.weight, std=0.3)
    return seams


def test_before_learning_nothing_changes() -> None:
    seams = Seams(SeamsConfig(width=8), STRIDE, BANDS)
    mel = stepped(noisy())
    assert torch.equal(seams(mel), mel)


@pytest.mark.parametrize("reach", [1, 4, 16, 99])
def test_only_frames_within_reach_change_and_the_mean_over_an_edge_stays(reach: int) -> None:
    mel = stepped(noisy())
    added = (opened(reach)(mel) - mel).detach()
    columns = added.unflatten(2, (-1, STRIDE))
    for side in (columns[:, :, :-1].flip(3), columns[:, :, 1:]):  # from the edge outwards
        first = side[..., : STRIDE // 2]  # nearer to this edge than to the next one
        assert float(first[..., 0].abs().max()) > 1e-3
    if reach <= STRIDE // 2:
        assert float(columns[..., reach : STRIDE - reach].abs().max()) == 0
        # What one side gains the other loses, frame for frame.
        mirrored = columns[:, :, :-1, -reach:].flip(3)
        torch.testing.assert_close(mirrored, -columns[:, :, 1:, :reach], atol=1e-6, rtol=0)
        assert float(columns[:, :, 0, 0].abs().max()) == 0, "the clip's own ends are no edges"


def test_an_edge_depends_on_its_two_columns_only() -> None:
    seams, mel = opened(), stepped(noisy())
    other = mel.clone()
    other[..., 3 * STRIDE :] = 0.9
    same = 3 * STRIDE - 4
    assert torch.equal(seams(mel)[..., :same], seams(other)[..., :same])
    assert torch.equal(seams(mel[..., :STRIDE]), mel[..., :STRIDE]), "one column has no edge"


def test_where_a_sound_begins_nothing_is_taken_out() -> None:
    seams = opened()
    seams.steady = 0.1
    mel = noisy()
    begins = mel.clone()
    begins[..., : 3 * STRIDE] = 0.0
    added = [(seams(one) - one)[..., 3 * STRIDE].detach().abs().mean() for one in (mel, begins)]
    assert added[1] < 1e-3 * added[0]


def test_it_learns_to_take_steps_out_and_leaves_the_grain() -> None:
    torch.manual_seed(0)
    seams = Seams(SeamsConfig(width=32, steady=1.0), STRIDE, BANDS)
    optimizer = torch.optim.Adam(seams.parameters(), 3e-3)
    for step in range(300):
        real = noisy(step, batch=16)
        loss = seam_loss(seams(stepped(real, step)), real, STRIDE)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    real = noisy(9999, batch=64)
    rough = stepped(real, 9999)
    with torch.no_grad():
        smooth = seams(rough)
    ratios = [seam_ratio(changes(mel, STRIDE)) for mel in (real, rough, smooth)]
    assert ratios[0] == pytest.approx(1.0, abs=0.05)
    assert ratios[1] > 3
    assert ratios[2] < 0.5 * ratios[1]
    grain = [mel[..., 5:11].diff(dim=2).abs().mean() for mel in (rough, smooth)]
    assert grain[1] == pytest.approx(float(grain[0]), rel=1e-4)


def test_the_measure_against_a_plain_loop() -> None:
    mel = stepped(noisy(batch=2, columns=3))
    mel[0, :, 20:30] = 0.0  # not heard
    sums = [[0.0, 0], [0.0, 0]]
    for item in mel:
        for frame in range(1, item.shape[1]):
            pair = item[:, frame - 1 : frame + 1]
            if bool((pair.amax(0) > 0.15).all()):
                kind = sums[0 if frame % STRIDE == 0 else 1]
                kind[0] += float((pair[:, 1] - pair[:, 0]).abs().mean())
                kind[1] += 1
    torch.testing.assert_close(
        changes(mel, STRIDE), torch.tensor(sums, dtype=torch.float64), atol=1e-5, rtol=1e-5
    )
    assert seam_ratio(changes(torch.zeros(1, BANDS, 64), STRIDE)) == 0.0


def test_the_loss_compares_the_means_beside_an_edge() -> None:
    real = torch.zeros(1, 1, 2 * STRIDE)
    step = real.clone()
    step[..., STRIDE:] = 0.5
    assert float(seam_loss(step, real, STRIDE)) == pytest.approx(0.25)
    assert float(seam_loss(real + 0.3, real, STRIDE)) == 0
