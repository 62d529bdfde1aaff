"""The peers, used directly with their own loaders.

Each is made from a model, its inputs and a number of threads, and raises what the engine raises
where it cannot run the model. `invoke` runs on the inputs already in place, which is the engine's
own time; `run` writes the inputs, runs, and reads fresh outputs, which is what a program does.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

import nnasync as nn
from benchmarks.peers.catalog import Entry, input_arrays, onnx_bytes
from nnasync.hal import Array

__all__ = ["PEERS", "LiteRT", "OnnxRuntime", "OpenVino", "Peer", "reason"]


class Peer(Protocol):
    """An engine with one model loaded."""

    inputs: list[Array]
    invoke: Callable[[], object]

    def run(self, inputs: Sequence[Array]) -> Array:
        """Writes the inputs, runs, and returns a fresh copy of the first output."""


def reason(error: BaseException) -> str:
    """Returns the most telling line of an engine's exception."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[-1] if lines else 'no reason given'}"
    return text if len(text) <= 140 else f"{text[:137]}..."


class LiteRT:
    """LiteRT's Interpreter with XNNPACK, which lets go of the interpreter lock while it runs."""

    def __init__(self, entry: Entry, threads: int = 1) -> None:
        package: Any = importlib.import_module("ai_edge_litert.interpreter")
        self.interpreter = package.Interpreter(entry.path, num_threads=threads)
        self.interpreter.allocate_tensors()
        self.sources = [one["index"] for one in self.interpreter.get_input_details()]
        self.result = self.interpreter.get_output_details()[0]["index"]
        self.inputs = input_arrays(nn.load(entry.path))
        self.invoke: Callable[[], object] = self.interpreter.invoke

    def run(self, inputs: Sequence[Array]) -> Array:
        for source, array in zip(self.sources, inputs, strict=True):
            self.interpreter.set_tensor(source, array)
        self.interpreter.invoke()
        result: Array = self.interpreter.get_tensor(self.result)
        return result


class OpenVino:
    """OpenVINO's CPU device in float32, reading the .tflite itself."""

    def __init__(
        self,
        entry: Entry,
        threads: int = 1,
        streams: int = 1,
        *,
        precision: str = "f32",
    ) -> None:
        package: Any = importlib.import_module("openvino")
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": streams,
            "INFERENCE_PRECISION_HINT": precision,
        }
        core = package.Core()
        self.inputs = input_arrays(nn.load(entry.path))
        model = core.read_model(entry.path)
        if model.is_dynamic():
            shapes = {n: array.shape for n, array in enumerate(self.inputs)}
            model.reshape(shapes)
        self.compiled = core.compile_model(model, "CPU", settings)
        self.request = self.compiled.create_infer_request()
        self.targets = [
            self.request.get_input_tensor(number).data for number in range(len(self.inputs))
        ]
        self.invoke: Callable[[], object] = self.request.infer

    def run(self, inputs: Sequence[Array]) -> Array:
        for target, array in zip(self.targets, inputs, strict=True):
            target[...] = array
        self.request.infer()
        result: Array = self.request.get_output_tensor(0).data.copy()
        return result


class OnnxRuntime:
    """ONNX Runtime's CPU provider, on an ONNX form of the model with NCHW images."""

    def __init__(self, entry: Entry, threads: int = 1) -> None:
        package: Any = importlib.import_module("onnxruntime")
        options = package.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        self.session = package.InferenceSession(
            onnx_bytes(entry), options, providers=["CPUExecutionProvider"]
        )
        (plain,) = input_arrays(nn.load(entry.path))
        first = plain.transpose(0, 3, 1, 2) if plain.ndim == 4 else plain
        self.inputs = [np.ascontiguousarray(first)]
        self.binding = self.session.io_binding()
        value, result = (
            package.OrtValue.ortvalue_from_numpy(array)
            for array in (self.inputs[0], self.run(self.inputs))
        )
        self.binding.bind_ortvalue_input("input", value)
        self.binding.bind_ortvalue_output("output", result)
        self.invoke: Callable[[], object] = self._invoke

    def _invoke(self) -> None:
        self.session.run_with_iobinding(self.binding)

    def run(self, inputs: Sequence[Array]) -> Array:
        result: Array = self.session.run(None, {"input": inputs[0]})[0]
        return result


PEERS: dict[str, Callable[[Entry, int], Peer]] = {
    "LiteRT": LiteRT,
    "OpenVINO": OpenVino,
    "ONNX Runtime": OnnxRuntime,
}
