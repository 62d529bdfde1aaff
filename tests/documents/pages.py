"""A page whose code runs, block after block, as the cells of a notebook do."""

from __future__ import annotations

import ast
import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

import nnasync as nn
from tests.documents.blocks import Block
from tests.importers.onnx.files import FLOAT, message, node, written
from tests.importers.tflite_files import G, Op, T, floats, graphs_file

REFERENCE = "nnasync-reference"
PICTURE = np.ones((1, 4), np.float32)
Answer = TypeVar("Answer")


def on_reference(open_runtime: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with the reference as device, and those that are to be isolated."""

    def opened(**options: Any) -> Any:
        devices = [REFERENCE, *options.get("isolate", ())]
        return open_runtime(**{"devices": devices, **options})

    return opened


class Page:
    """The namespace, the event loop and the folder in which the blocks of a page run.

    Devices are not compared with each other: the reference runs what names none.
    """

    def __init__(self, name: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.name = name
        self.folder = folder
        self.patch = patch
        self.space: dict[str, Any] = {"__name__": "page", "nn": nn}
        self._runner = asyncio.Runner()
        self._kept: list[object] = []
        patch.chdir(folder)
        patch.setenv("HOME", str(folder))
        for module in (nn, nn.sync):
            patch.setattr(module, "open_runtime", on_reference(module.open_runtime))
        # The machine of a test may be as slow as it likes.
        within = nn.within
        patch.setattr(nn, "within", lambda *, ms: within(s=ms))

    def wait(self, awaited: Coroutine[Any, Any, Answer]) -> Answer:
        return self._runner.run(awaited)

    def run(self, code: str, where: str = "") -> None:
        """Run a block: its coroutine on the loop, and the function `main` that it made."""
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        compiled = compile(code, where or self.name, "exec", flags, dont_inherit=True)
        value = eval(compiled, self.space)
        if inspect.iscoroutine(value):
            self.wait(value)
        main = self.space.pop("main", None)
        if main is not None and "nn.run(main)" not in code:
            self.wait(main())
        self._kept.append(self.space.get("net"))  # its runtime closes it

    def run_all(self, blocks: list[Block], reader: Callable[[Page], Iterator[None]]) -> None:
        """Run the blocks; what the reader does comes before, between and after them."""
        try:
            beside = reader(self)
            for block in blocks:
                next(beside, None)
                self.run(block.text, f"{self.name}, line {block.line}")
            assert next(beside, "done") == "done", f"{self.name} has fewer blocks than its reader"
        finally:
            self._runner.close()

    def write_tflite(self, name: str, tensor: T, operation: str = "TANH") -> None:
        """A file with a network of one operation, in place of a reader's model."""
        graph = G([tensor, tensor], [Op(operation, (0,), (1,))], [0], [1])
        (self.folder / name).write_bytes(graphs_file([graph]))

    def write_detector(self) -> None:
        """The model that many pages speak of: it takes four numbers."""
        self.write_tflite("detector.tflite", floats(1, 4))

    def write_onnx(self, name: str, *, rows: int | str = 1) -> None:
        """The same as a file of ONNX; named rows are any number."""
        shape = (rows, 4)
        tanh = message([node("Tanh", ["x"], ["y"])], [("x", FLOAT, shape)], [("y", FLOAT, shape)])
        written(self.folder, tanh, name)
