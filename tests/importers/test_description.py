"""What a file of a model holds, as text."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import nnasync as nn
from tests.importers.tflite_files import G, Op, Signature, floats, graphs_file, q8, tflite_file


def test_a_file_with_signatures_states_and_labels(tmp_path: Path) -> None:
    graph = G([floats(1, 3)] * 2, [Op("TANH", (0,), (1,))], [0], [1])
    content = graphs_file([graph], [Signature("serve", 0, {"x": 0}, {"y": 1})])
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("labels.txt", "cat\ndog\n")
    path = tmp_path / "cats.tflite"
    path.write_bytes(content + archive.getvalue())
    found = nn.describe(path)
    assert [str(each) for each in found.signatures] == ["serve(x) -> y"]
    assert found.labels == ("cat", "dog")
    assert str(found).splitlines() == [
        f"{path}: translated, 1 operation",
        "  input t0: float32 [1, 3]",
        "  output t1: float32 [1, 3]",
        "  signature serve(x) -> y",
        "  2 labels: cat, dog",
    ]


def test_quantized_inputs_states_and_files_kept_whole(tmp_path: Path, shared: Path) -> None:
    path = tmp_path / "words.tflite"
    path.write_bytes(tflite_file([q8(2, type="UINT8")] * 2, [Op("ROUND", (0,), (1,))], [0], [1]))
    found = nn.describe(path)
    assert found.kept_whole.startswith("has operators that are not translated: 1 x ROUND")
    assert str(found.inputs[0]) == "t0: uint8 [2], scale 0.5, zero point 3"
    assert len(nn.describe(shared / "models" / "tts_float.tflite").states) == 7


def test_a_broken_archive_has_no_labels(tmp_path: Path) -> None:
    content = tflite_file([floats(1)] * 2, [Op("TANH", (0,), (1,))], [0], [1])
    path = tmp_path / "broken.tflite"
    path.write_bytes(content + b"PK\x05\x06" + bytes(18))
    assert nn.describe(path).labels == ()
