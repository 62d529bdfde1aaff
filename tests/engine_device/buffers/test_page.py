"""The page on memory domains: its programs run and print what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "memory_domains.md"


@pytest.mark.parametrize(
    ("number", "expected"),
    [(0, "[[0.75 1.5  2.25 3.  ]] [[ 3.  6.  9. 12.]]"), (1, "[[2. 4. 6. 8.]]")],
    ids=["networks", "below networks"],
)
def test_a_program_of_the_page(
    capsys: pytest.CaptureFixture[str], number: int, expected: str
) -> None:
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(programs) == 2
    names: dict[str, Any] = {}
    exec(programs[number], names)
    assert capsys.readouterr().out.strip() == expected
    assert f"# {expected}" in programs[number]
