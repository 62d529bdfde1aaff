"""How the package is imported: without its telemetry, which forks the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("openvino")

SCRIPT = """
import multiprocessing.process, os, sys

def started(*args, **options):
    raise SystemExit('a process was started')

multiprocessing.process.BaseProcess.start = started
os.register_at_fork(before=lambda: print('forked'))
from nnasync.drivers.openvino import package
package.core()
print('openvino_telemetry' in sys.modules)
try:
    import openvino_telemetry
except ImportError:
    pass
"""


def test_the_import_reports_to_nobody(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path)}
    environment.pop("CI", None)
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert ran.stdout.strip() == "False"
    assert not list(tmp_path.iterdir())
