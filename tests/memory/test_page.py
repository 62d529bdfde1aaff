"""The program of docs/memory.md does what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "memory.md"


def test_the_program_of_the_page() -> None:
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    program = found.group(1)
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ended.stderr == ""
    said = re.findall(r"print\(.*\)  # ([^:\n]*)", program)
    assert ended.stdout.splitlines() == said
