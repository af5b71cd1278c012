"""Tiny ears: networks whose embedding is the mean over time of what they are given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

FRONT_END = {
    "sample_rate": 8000,
    "log_mel": {"window": 200, "hop": 80, "n_fft": 256, "bands": 12, "low": 100, "high": 3800},
    "patch": 20,
    "patch_hop": 10,
}


def onnx_ear(folder: Path, name: str = "ear", **changes: Any) -> Path:
    """An ONNX file and its JSON: [1, frames, bands] to the mean over frames [1, bands]."""
    import onnx
    from onnx import TensorProto, helper

    given = helper.make_tensor_value_info("patch", TensorProto.FLOAT, [1, None, None])
    mean = helper.make_tensor_value_info("embedding", TensorProto.FLOAT, [1, None])
    total = helper.make_tensor_value_info("total", TensorProto.FLOAT, [1, None])
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    nodes = [
        helper.make_node("ReduceSum", ["patch", "axes"], ["total"], keepdims=0),
        helper.make_node("ReduceMean", ["patch", "axes"], ["embedding"], keepdims=0),
    ]
    graph = helper.make_graph(nodes, "ear", [given], [total, mean], [axes])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    config = FRONT_END | {"output": "embedding"} | changes
    path.with_suffix(".json").write_text(json.dumps(config), encoding="utf-8")
    return path


def tflite_ear(folder: Path, frames: int, bands: int) -> Path:
    """A TFLite file: mean over frames ("inner" [1, bands]), whose mean over bands is the output."""
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    def tensor(name: str, shape: list[int], buffer: int, kind: int) -> Any:
        made = schema.TensorT()
        made.name, made.shape, made.buffer, made.type = name.encode(), shape, buffer, kind
        return made

    axis = schema.BufferT()
    axis.data = list(np.array([1], dtype=np.int32).tobytes())
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.MEAN
    graph = schema.SubGraphT()
    numbers = schema.TensorType.FLOAT32
    graph.tensors = [
        tensor("patch", [1, frames, bands], 0, numbers),
        tensor("axis", [1], 1, schema.TensorType.INT32),
        tensor("inner", [1, bands], 0, numbers),
        tensor("mean", [1], 0, numbers),
    ]
    graph.inputs, graph.outputs, graph.operators = [0], [3], []
    for given, made in ((0, 2), (2, 3)):
        operator = schema.OperatorT()
        operator.inputs, operator.outputs = [given, 1], [made]
        operator.builtinOptionsType = schema.BuiltinOptions.ReducerOptions
        operator.builtinOptions = schema.ReducerOptionsT()
        graph.operators.append(operator)
    model = schema.ModelT()
    model.version, model.subgraphs, model.operatorCodes = 3, [graph], [code]
    model.buffers = [schema.BufferT(), axis]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    path = folder / "ear.tflite"
    path.write_bytes(bytes(builder.Output()))
    return path


PYTHON_EAR = """
import numpy as np

def load(path):
    assert path.endswith("ear.py")
    def ear(wave, rate):
        return np.array([np.abs(wave).mean(), rate, len(wave)])
    return ear
"""
