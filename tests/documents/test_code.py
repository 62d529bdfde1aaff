"""The code of documents runs, with stand-ins for what is the reader's.

The blocks of a page run one after the other in one namespace and on one event loop, as the cells of
a notebook do.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import nnasync as nn
from tests.documents.blocks import DOCUMENTS, Block, blocks_of, name_of
from tests.documents.pages import PICTURE, Page
from tests.documents.readers import READERS, having

RUN_BY = {
    "docs/memory.md": "tests/memory/test_page.py",
    "docs/memory_domains.md": "tests/engine_device/buffers/test_page.py",
    "docs/models.md": "tests/test_models_doc.py",
    "docs/write_a_driver.md": "tests/test_write_a_driver.py",
    **dict.fromkeys(READERS, "tests/documents/test_code.py"),
}
"""What runs the code of a document; the programs of the tutorial are those of `examples`."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a reader works, under a short name."""
    (tmp_path / "r").mkdir()
    return tmp_path / "r"


@pytest.mark.parametrize("name", sorted(READERS))
def test_code_of_a_page_runs(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = blocks_of(name, "python")
    assert blocks
    Page(name, folder, monkeypatch).run_all(blocks, READERS[name])


def test_all_code_is_run() -> None:
    assert {name_of(path) for path in DOCUMENTS if blocks_of(name_of(path), "python")} == set(
        RUN_BY
    )


def test_the_first_page_prints_an_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "docs/index.md"
    Page(name, folder, monkeypatch).run_all(blocks_of(name, "python"), READERS[name])
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
def test_the_page_of_errors_tells_them_apart(
    error: nn.NNError, told: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def net(*_: object, **__: object) -> None:
        raise error

    page = Page("docs/errors.md", folder, monkeypatch)
    page.run_all(blocks_of(page.name, "python"), having())
    assert asyncio.run(page.space["answer"](net, PICTURE)) == told


@pytest.mark.parametrize(
    ("code", "error"),
    [("nn.no_such", "no_such"), ("await undefined", "undefined")],
)
def test_wrong_code_is_noticed(
    code: str, error: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Page("a page", folder, monkeypatch)
    with pytest.raises((AttributeError, NameError), match=error):
        page.run_all([Block("python", 1, code)], having())


def test_a_page_that_has_lost_a_block_is_noticed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Page("a page", folder, monkeypatch)
    with pytest.raises(AssertionError, match="fewer blocks"):
        page.run_all([], READERS["docs/caching.md"])
