"""The code of pages that is not a whole program runs, with stand-ins for what is the reader's.

The blocks of a page run one after the other in one namespace and on one event loop, as the cells of
a notebook do. Devices are not compared with each other: the reference runs everything.
"""

from __future__ import annotations

import ast
import asyncio
import functools
import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync.streaming import Item
from nnasync.vision import Boxes
from tests.importers.tflite_files import G, Op, floats, graphs_file

ROOT = Path(__file__).resolve().parent.parent
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PICTURE = np.ones((1, 4), np.float32)
NO_BOXES = Boxes(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64))

READERS: dict[str, dict[str, Any]] = {
    "caching.md": {"model": "detector.tflite"},
    "errors.md": {},
    "experiments.md": {},
    "index.md": {},
    "policies.md": {},
    "scripts_and_notebooks.md": {"picture": PICTURE, "hops": [PICTURE, PICTURE]},
    "simulator.md": {},
    "vision.md": {"item": Item(0, 1, None), "boxes": NO_BOXES},
}
"""What a page takes from its reader."""

BETWEEN = {"caching.md": "rt = await nn.open_runtime()"}
"""What the reader does after the first block, where the next ones are parts of it."""


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the reader's model, from which the reader works."""
    graph = G([floats(1, 4), floats(1, 4)], [Op("TANH", (0,), (1,))], [0], [1])
    (tmp_path / "detector.tflite").write_bytes(graphs_file([graph]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for module in (nn, nn.sync):
        plain = functools.partial(module.open_runtime, devices=["nnasync-reference"])
        monkeypatch.setattr(module, "open_runtime", plain)
    return tmp_path


def run_page(name: str, blocks: list[str]) -> dict[str, Any]:
    """Run the blocks of a page; what they have made."""
    space = dict(READERS[name], __name__="page", nn=nn)
    kept: list[object] = []
    with asyncio.Runner() as runner:
        for number, block in enumerate(blocks):
            run_block(runner, f"{name}, block {number}", block, space)
            kept.append(space.get("net"))  # the runtime closes it
            if number == 0 and name in BETWEEN:
                run_block(runner, name, BETWEEN[name], space)
        if name in BETWEEN:
            run_block(runner, name, "await rt.aclose()", space)
    return space


def run_block(runner: asyncio.Runner, where: str, block: str, space: dict[str, Any]) -> None:
    code = compile(block, where, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    value = eval(code, space)
    if inspect.iscoroutine(value):
        runner.run(value)
    main = space.pop("main", None)
    if main is not None and "nn.run(main)" not in block:
        runner.run(main())


@pytest.mark.parametrize("name", sorted(READERS))
def test_code_of_a_page_runs(name: str, reader: Path) -> None:
    blocks = PYTHON.findall((ROOT / "docs" / name).read_text("utf-8"))
    assert blocks
    run_page(name, blocks)


def test_the_first_page_prints_an_answer(reader: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_page("index.md", PYTHON.findall((ROOT / "docs" / "index.md").read_text("utf-8")))
    assert capsys.readouterr().out == "nothing to see\n"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (nn.MissedDeadlineTransient("late"), "later"),
        (nn.MissedDeadlinePersistent("late"), "never, with this deadline"),
        (nn.ResourceExhaustedTransient("full"), "later"),
        (nn.DeviceDied("gone"), "failed"),
    ],
)
def test_the_page_of_errors_tells_them_apart(error: nn.NNError, told: str, reader: Path) -> None:
    async def net(*_: object, **__: object) -> None:
        raise error

    space = run_page("errors.md", PYTHON.findall((ROOT / "docs" / "errors.md").read_text("utf-8")))
    assert asyncio.run(space["answer"](net, PICTURE)) == told


def test_wrong_code_is_noticed(reader: Path) -> None:
    with pytest.raises(AttributeError, match="no_such"):
        run_page("errors.md", ["import nnasync as nn\nnn.no_such\n"])
    with pytest.raises(NameError, match="undefined"):
        run_page("errors.md", ["await undefined\n"])
