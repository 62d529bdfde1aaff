"""How the package is imported: when it must be, and without its telemetry, which forks."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from nnasync._core.drivers.openvino import package

pytest.importorskip("openvino")

SCRIPT = """
import multiprocessing.process, os, sys

def started(*args, **options):
    raise SystemExit('a process was started')

multiprocessing.process.BaseProcess.start = started
os.register_at_fork(before=lambda: print('forked'))
from nnasync._core.drivers.openvino import package
package.{first}()
print('openvino_telemetry' in sys.modules)
try:
    import openvino_telemetry
except ImportError:
    pass
"""


@pytest.mark.parametrize("first", ["core", "module", "opset", "request_type"])
def test_the_import_reports_to_nobody(first: str, tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path)}
    environment.pop("CI", None)
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("{first}", first)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert ran.stdout.strip() == "False"
    assert not list(tmp_path.iterdir())


YIELDS = """
import gc, time
gc.set_threshold({threshold}, 11, 12)
from nnasync._core.collecting import collecting_later
from nnasync._core.drivers.openvino import package
turns = []
sleep = time.sleep
time.sleep = lambda seconds: (turns.append(seconds), sleep(seconds))
{switch}
with collecting_later():
    package.module()
    assert not gc.isenabled()
print(len(turns), gc.get_threshold(), len(gc.callbacks), gc.isenabled())
"""


def yields(threshold: int, switch: str = "") -> tuple[int, str]:
    """How often the import gave the interpreter lock away, and what the collector is set to."""
    ran = subprocess.run(
        [sys.executable, "-c", YIELDS.format(threshold=threshold, switch=switch)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    turns, rest = ran.stdout.strip().split(" ", 1)
    return int(turns), rest


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="its collector waits for the call's end")
def test_other_threads_have_their_turns_while_it_is_imported() -> None:
    turns, left = yields(700)
    assert turns > 10
    assert left == "(700, 11, 12) 0 True"


def test_a_collector_that_was_switched_off_stays_off() -> None:
    assert yields(0) == (0, "(0, 11, 12) 0 True")
    assert yields(700, "gc.disable()") == (0, "(700, 11, 12) 0 False")


LOWERINGS = """
import sys
from nnasync._core.drivers.openvino import OpenVinoEngine
from nnasync.hal import ExecutionPreference
from tests.rigs import doubler
engine, model = OpenVinoEngine(), doubler()
print(engine.supported_operations(model))
print(len(engine.lowerings(model, ExecutionPreference.FAST_SINGLE_ANSWER)) > 0)
print('openvino' in sys.modules)
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="others are asked by the package")
def test_what_it_can_do_is_known_without_it() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LOWERINGS], capture_output=True, text=True, timeout=120, check=True
    )
    assert ran.stdout.split() == ["[True]", "True", "False"]


def test_the_flags_of_the_processor_say_what_the_package_says() -> None:
    capabilities = package.core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    assert package.has_bfloat16() == ("BF16" in capabilities)
