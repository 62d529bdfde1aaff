"""docs/models.md: its programs run, its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.importers.tflite.test_metadata import SCORES, normalization, packed, written
from tests.importers.tflite_files import G, Op, Signature, T, floats, graphs_file

PAGE = Path(__file__).resolve().parent.parent / "docs" / "models.md"
TEXT = PAGE.read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
NET = "<Net 'image' on litert-cpu: t0 float32[1, 8, 8, 3] -> t2 float32[1, 4]>"
PRINTED = ["(1, 4)", NET, "('cat', 'dog')", "1.0\n1.0", "float32", "(16, 4)", ""]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the page speaks of."""
    folder = tmp_path_factory.mktemp("models")
    weights = np.ones((4, 8 * 8 * 3), np.float32)
    tensors = [T("FLOAT32", (1, 8, 8, 3)), T("FLOAT32", weights.shape, weights), floats(1, 4)]
    options = {"FusedActivationFunction": 0}
    dense = Op("FULLY_CONNECTED", (0, 1, -1), (2,), "FullyConnectedOptions", options)
    image = normalization(np.array([127.5], np.float32), np.array([127.5], np.float32))
    metadata = written({3: [{2: [image], 3: [SCORES]}]})
    content = graphs_file([G(tensors, [dense], [0], [2])], (), {"TFLITE_METADATA": metadata})
    (folder / "image.tflite").write_bytes(content + packed())
    two = G([floats(1, 3)] * 2, [Op("TANH", (0,), (1,))], [0], [1])
    signature = Signature("first", 0, {"x": 0}, {"y": 1})
    (folder / "two.tflite").write_bytes(graphs_file([two], [signature]))
    free = T("FLOAT32", (1, 3), None, open=(-1, 3))
    (folder / "open.tflite").write_bytes(
        graphs_file([G([free, free], [Op("TANH", (0,), (1,))], [0], [1])])
    )
    scaled = T("INT8", (1, 4), None, (0.5,), (-1,))
    (folder / "bytes.tflite").write_bytes(
        graphs_file([G([scaled, scaled], [Op("RELU", (0,), (1,))], [0], [1])])
    )
    memory = G([floats(1, 3)] * 3, [Op("ADD", (0, 1), (2,), "AddOptions")], [0, 1], [2])
    names = Signature("serve", 0, {"x": 0, "state": 1}, {"next_state": 2})
    (folder / "memory.tflite").write_bytes(graphs_file([memory], [names]))
    return folder


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_its_programs_run(folder: Path, number: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS[number]],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith(PRINTED[number])


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert len(links) >= 3
    assert all((PAGE.parent / link).is_file() for link in links)


def test_readme_leads_here() -> None:
    readme = (PAGE.parent.parent / "README.md").read_text(encoding="utf-8")
    assert "(docs/models.md)" in readme
