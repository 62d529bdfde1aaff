"""The page on memory domains: its program runs and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "memory_domains.md"


def test_the_program_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(program, names)
    printed = capsys.readouterr().out.strip()
    assert printed == "[[2. 4. 6. 8.]]"
    assert f"# {printed}" in program
