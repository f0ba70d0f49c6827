"""Builds ONNX graphs and runs them with ONNX Runtime, which is faster than torch on a CPU."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

Shape = Sequence[int | str | None]
Inputs = dict[str, tuple[Any, Shape]]
LARGE = 1024  # bytes; larger weights are handed to a session as they are, not copied into its model


class Graph:
    """Collects nodes and weights. Methods take and return the names of tensors."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: dict[str, np.ndarray] = {}

    def constant(self, value: Any) -> str:
        """A weight or constant."""
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(value, order="C")
        return name

    def node(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """A node of one output. kind: the operator's name; output: a name of your own."""
        output = output or f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def reshape(self, x: str, *shape: int) -> str:
        """Reshape: 0 keeps a dimension, -1 infers it."""
        return self.node("Reshape", x, self.constant(np.array(shape, np.int64)))

    def slice(self, x: str, start: int, stop: int, axis: int, output: str | None = None) -> str:
        """x[start:stop] along an axis."""
        return self.node("Slice", x, *(self.constant(np.array([v])) for v in (start, stop, axis)), output=output)

    def squeeze(self, x: str, axis: int) -> str:
        """Remove an axis of length one."""
        return self.node("Squeeze", x, self.constant(np.array([axis])))

    def unsqueeze(self, x: str, axis: int) -> str:
        """Insert an axis of length one."""
        return self.node("Unsqueeze", x, self.constant(np.array([axis])))

    def lowest(self, x: str, count: str) -> tuple[str, str]:
        """The lowest values along the last axis in any order, and their indices, int64. count: (1,) int64."""
        values, indices = f"n{len(self.nodes)}", f"n{len(self.nodes)}_indices"
        self.nodes.append(helper.make_node("TopK", [x, count], [values, indices], largest=0, sorted=0))
        return values, indices

    def transpose(self, x: str, *order: int) -> str:
        """Permute the axes."""
        return self.node("Transpose", x, perm=list(order))

    def layer_norm(self, x: str, weight: np.ndarray, bias: np.ndarray, epsilon: float = 1e-5) -> str:
        """Layer norm over the last axis."""
        return self.node("LayerNormalization", x, self.constant(weight), self.constant(bias), axis=-1, epsilon=epsilon)

    def gelu(self, x: str) -> str:
        """The exact GELU. Written out, since opset 17 has no such operator; ONNX Runtime fuses it."""
        share = self.node("Erf", self.node("Div", x, self.constant(np.float32(2**0.5))))
        doubled = self.node("Mul", x, self.node("Add", share, self.constant(np.float32(1))))
        return self.node("Mul", doubled, self.constant(np.float32(0.5)))

    def model(self, inputs: Inputs, outputs: Mapping[str, Shape]) -> "Model":
        """The finished model. inputs: numpy type and shape by name; outputs: shape by name, all float32."""
        return Model(self.nodes, self.weights, inputs, outputs)


@dataclass(frozen=True)
class Model:
    """A graph with its inputs and outputs (see `Graph.model`)."""

    nodes: list[Any]
    weights: dict[str, np.ndarray]
    inputs: Inputs
    outputs: Mapping[str, Shape]

    def to_bytes(self) -> bytes:
        """The content of an ONNX file."""
        return self._serialised([numpy_helper.from_array(value, name) for name, value in self.weights.items()])

    def session(self, threads: int) -> onnxruntime.InferenceSession:
        """An inference session. Its idle threads sleep: spinning ones would take cores from the other sessions."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")  # takes less memory
        large = {name: value for name, value in self.weights.items() if value.nbytes > LARGE}
        small = [numpy_helper.from_array(value, name) for name, value in self.weights.items() if name not in large]
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(value) for value in large.values()]
        options.add_external_initializers(list(large), values)
        model = self._serialised(small + [_external(name, value) for name, value in large.items()])
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def _serialised(self, weights: list[Any]) -> bytes:
        graph = helper.make_graph(
            self.nodes,
            "genius",
            [_value(name, dtype, shape) for name, (dtype, shape) in self.inputs.items()],
            [_value(name, np.float32, shape) for name, shape in self.outputs.items()],
            weights,
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def _external(name: str, value: np.ndarray) -> Any:
    """A weight whose values are not in the model."""
    tensor = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(value.dtype), dims=value.shape)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="given to the session")
    return tensor


def _value(name: str, dtype: Any, shape: Shape) -> Any:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), list(shape))
