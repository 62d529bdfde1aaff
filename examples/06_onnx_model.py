"""An ONNX file, run twice: in operations of the HAL on any device, and whole by ONNX Runtime.

It takes the extra of both packages: pip install '.[onnxruntime]'.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

import nnasync as nn


def write_network(path: Path) -> None:
    """A convolution and a softmax, as an exporter would write them."""
    weights = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["image", "weights"], ["features"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["features"], ["active"]),
            helper.make_node("GlobalAveragePool", ["active"], ["pooled"]),
            helper.make_node("Flatten", ["pooled"], ["flat"]),
            helper.make_node("Softmax", ["flat"], ["scores"]),
        ],
        "network",
        [helper.make_tensor_value_info("image", onnx.TensorProto.FLOAT, (1, 3, 16, 16))],
        [helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, (1, 4))],
        [numpy_helper.from_array(weights, "weights")],
    )
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)


async def main() -> None:
    image = np.random.default_rng(1).standard_normal((1, 3, 16, 16)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        write_network(path)
        async with nn.open_runtime(devices=["nnasync-reference", "onnxruntime-cpu"]) as runtime:
            translated = await runtime.compile(nn.load(path))
            whole = await runtime.compile(nn.load(path, form="whole"), devices=["onnxruntime-cpu"])
            for net in (translated, whole):
                part = net.report().partitions[0]
                print(f"{part.device} runs operations {', '.join(map(str, part.operations))}")
            async with whole.burst() as burst:
                difference = abs(await translated(image) - await burst(image)).max()
    print(f"they differ by at most {difference:.1e}")


if __name__ == "__main__":
    nn.run(main)
