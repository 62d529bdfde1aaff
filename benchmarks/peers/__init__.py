"""nnasync beside LiteRT, OpenVINO and ONNX Runtime: `python -m benchmarks.peers`."""
