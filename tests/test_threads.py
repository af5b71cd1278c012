"""Work on one core each: in order, the same on any number, and errors come through."""

from __future__ import annotations

import pytest
import torch

from diffsound.threads import one_core_each, torch_threads


def test_each_part_has_one_core_and_keeps_its_place() -> None:
    def work(part: int) -> tuple[int, int, bool]:
        return part, torch.get_num_threads(), torch.is_inference_mode_enabled()

    expected = [(part, 1, True) for part in range(7)]
    for cores in (1, 2, 4):
        with torch_threads(cores):
            assert one_core_each(work, range(7)) == expected
            assert torch.get_num_threads() == cores
    assert one_core_each(work, []) == []


def test_an_error_is_the_callers() -> None:
    def work(part: int) -> int:
        if part == 2:
            raise ValueError("the third")
        return part

    with torch_threads(2), pytest.raises(ValueError, match="the third"):
        one_core_each(work, range(4))
