"""Networks written as ONNX graphs and run by ONNX Runtime, which on a CPU is quicker than torch.

Knows how nodes and weights become a session; knows nothing of any particular network.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

Shape = Sequence[int | str | None]
Inputs = dict[str, tuple[Any, Shape]]


class Graph:
    """Collects nodes and weights. A tensor is known by its name, which `node` and `constant` return."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def constant(self, value: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        output = output or f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def reshape(self, x: str, *shape: int) -> str:
        """0 keeps a dimension, -1 is what is left."""
        return self.node("Reshape", x, self.constant(np.array(shape, np.int64)))

    def slice(self, x: str, start: int, stop: int, axis: int, output: str | None = None) -> str:
        return self.node("Slice", x, *(self.constant(np.array([v])) for v in (start, stop, axis)), output=output)

    def split(self, x: str, parts: int, axis: int) -> list[str]:
        """Equal parts along an axis."""
        names = [f"n{len(self.nodes)}_{part}" for part in range(parts)]
        self.nodes.append(helper.make_node("Split", [x], names, axis=axis))
        return names

    def squeeze(self, x: str, axis: int) -> str:
        return self.node("Squeeze", x, self.constant(np.array([axis])))

    def unsqueeze(self, x: str, axis: int) -> str:
        return self.node("Unsqueeze", x, self.constant(np.array([axis])))

    def transpose(self, x: str, *order: int) -> str:
        return self.node("Transpose", x, perm=list(order))

    def model(self, inputs: Inputs, outputs: Mapping[str, Shape]) -> bytes:
        """The finished ONNX model. inputs: numpy types and shapes by name; outputs are float32."""
        graph = helper.make_graph(
            self.nodes,
            "genius",
            [
                _value(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), shape)
                for name, (kind, shape) in inputs.items()
            ],
            [_value(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
            self.weights,
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def _value(name: str, kind: int, shape: Shape) -> Any:
    return helper.make_tensor_value_info(name, kind, list(shape))


def session(model: bytes, threads: int) -> onnxruntime.InferenceSession:
    """Threads that have nothing to do sleep: sessions take turns, and would otherwise keep each other's cores busy."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
