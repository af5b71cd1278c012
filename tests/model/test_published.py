"""Checkpoints with objects of other libraries are read for their tensors; nothing in them runs."""

from __future__ import annotations

import pickle
import sys
import zipfile
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from diffsound.errors import BundleError
from diffsound.model.published import read_checkpoint


@pytest.fixture
def lightning() -> Iterator[Callable[..., type]]:
    """Makes classes of a library that is there when a file is saved and not when it is read."""
    module = ModuleType("lightning_1_2")

    def make(name: str, base: type = object) -> type:
        made = type(name, (base,), {"__module__": module.__name__})
        setattr(module, name, made)
        return made

    sys.modules[module.__name__] = module
    yield make
    sys.modules.pop(module.__name__, None)


def lightning_checkpoint(make: Callable[..., type], weights: dict[str, Any]) -> dict[str, Any]:
    """What Lightning 1.2 saves around a state dict."""
    stop = make("EarlyStopping")
    hyper = make("AttributeDict", dict)(lr=1e-6, layers=[1, 2])
    saved = make("Config")()
    saved.inner = hyper
    state = OrderedDict(weights)
    state._metadata = OrderedDict({"": {"version": 1}})  # type: ignore[attr-defined]
    return {
        "epoch": 3,
        "pytorch-lightning_version": "1.2.10",
        "callbacks": {make("ModelCheckpoint"): {"best": torch.tensor(0.5)}, stop: {"wait": 2}},
        "hyper_parameters": hyper,
        "config": saved,
        "counts": defaultdict(list, a=[1]),
        "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(2)}}}],
        "lr": np.float64(0.1),
        "state_dict": state,
    }


def test_tensors_of_a_lightning_checkpoint(lightning: Callable[..., type], tmp_path: Path) -> None:
    shared = torch.arange(12.0).view(3, 4)
    weights = {
        "plain": torch.randn(2, 3),
        "half": torch.randn(4).half(),
        "counts": torch.tensor([1, 2, 3]),
        "flags": torch.tensor([True, False]),
        "view": shared.T[1:, :2],
        "same": shared,
        "none": torch.empty(0, 5),
        "number": torch.tensor(2.5),
        "parameter": torch.nn.Parameter(torch.randn(3)),
    }
    path = tmp_path / "last.ckpt"
    torch.save(lightning_checkpoint(lightning, weights), path)
    sys.modules.pop("lightning_1_2")
    with pytest.raises(pickle.UnpicklingError):
        torch.load(path, weights_only=True)

    read = read_checkpoint(path)
    assert read["state_dict"].keys() == weights.keys()
    for name, tensor in weights.items():
        found = read["state_dict"][name]
        assert found.dtype == tensor.dtype
        torch.testing.assert_close(found, tensor.detach(), rtol=0, atol=0)
    assert read["epoch"] == 3
    assert read["pytorch-lightning_version"] == "1.2.10"
    assert read["callbacks"] == {}
    assert "config" not in read
    assert "lightning_1_2" not in sys.modules


class Calls:
    """An object whose pickle calls a function when it is read."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


@pytest.mark.parametrize("where", ["state_dict", "callbacks", "weight"])
def test_a_malicious_file_runs_nothing(tmp_path: Path, where: str) -> None:
    owned = tmp_path / "owned"
    evil = Calls(Path.touch, owned)
    content: dict[str, Any] = {"state_dict": {"a": torch.ones(1)}, "callbacks": {}}
    if where == "weight":
        content["state_dict"]["b"] = evil
    else:
        content[where] = evil
    torch.save(content, tmp_path / "evil.pth")
    read = read_checkpoint(tmp_path / "evil.pth")
    assert not owned.exists()
    assert all(isinstance(value, torch.Tensor) for value in read.get("state_dict", {}).values())


@pytest.mark.parametrize("function", [exec, eval, getattr, __import__, setattr])
def test_builtins_are_not_called(tmp_path: Path, function: Callable[..., Any]) -> None:
    code = f"open({str(tmp_path / 'owned')!r}, 'w')"
    arguments = {exec: (code,), eval: (code,), __import__: ("antigravity",)}
    chosen = arguments.get(function, (sys, "path", ["owned"]))
    if chosen[0] is sys:
        chosen = ("sys", *chosen[1:])
    torch.save({"a": Calls(function, *chosen)}, tmp_path / "evil.pth")
    assert read_checkpoint(tmp_path / "evil.pth") == {}
    assert not (tmp_path / "owned").exists()
    assert "antigravity" not in sys.modules


def archive(path: Path, program: bytes, **entries: bytes) -> Path:
    """A file like those of torch.save, around a pickle written by hand."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", program)
        for name, content in entries.items():
            file.writestr(f"archive/{name}", content)
    return path


def tensor_program(storage: str = "FloatStorage", count: int = 2, size: int = 2) -> bytes:
    """{"a": a tensor of `size` numbers over a storage that says it has `count`}."""
    said = f"(S'storage'\nctorch\n{storage}\nS'0'\nS'cpu'\nI{count}\nt".encode()
    rebuild = b"ctorch._utils\n_rebuild_tensor_v2\n"
    how = f"I0\n(I{size}\nt(I1\ntI00\nccollections\nOrderedDict\n)Rt".encode()
    return b"\x80\x02(dS'a'\n" + rebuild + b"(" + said + b"Q" + how + b"Rs."


def test_a_tensor_written_by_hand(tmp_path: Path) -> None:
    path = archive(tmp_path / "x.pth", tensor_program(), **{"data/0": b"\0" * 8})
    torch.testing.assert_close(read_checkpoint(path)["a"], torch.zeros(2))


@pytest.mark.parametrize(
    "program",
    [
        tensor_program(count=3),  # fewer bytes than it says
        tensor_program(size=4),  # beyond its storage
        tensor_program(storage="ComplexStorage"),
        tensor_program().replace(b"S'0'", b"S'../x'"),  # no such entry
        b"\x80\x02ccollections\nOrderedDict\n}b.",  # state for a class instead of an object
        b"\x80\x02ctorch._utils\n_rebuild_parameter\n(N}S'__new__'\nNstb.",  # attributes for one
        b"\x80\x02(dS'a'\n",  # cut off
        b"\x80\x02]q\x00h\x00a.",  # a list that holds itself
        b"\x80\x02K\x01.",  # a number
    ],
)
def test_broken_files_are_refused_in_one_line(tmp_path: Path, program: bytes) -> None:
    path = archive(tmp_path / "x.pth", program, **{"data/0": b"\0" * 8})
    with pytest.raises(BundleError) as caught:
        read_checkpoint(path)
    assert "\n" not in str(caught.value)


def test_compressed_data_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pth"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", tensor_program(count=1 << 20))
        file.writestr("archive/data/0", b"\0" * (4 << 20))
    with pytest.raises(BundleError, match="compressed"):
        read_checkpoint(path)


@pytest.mark.parametrize("content", [b"", b"garbage" * 100])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.pth").write_bytes(content)
    with pytest.raises(BundleError, match="not a checkpoint"):
        read_checkpoint(tmp_path / "x.pth")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="there is no checkpoint at"):
        read_checkpoint(tmp_path / "x.pth")
