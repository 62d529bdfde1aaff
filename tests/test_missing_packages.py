"""Without an extra, each part that needs it says which command installs it.

What is blocked would have been imported by tests before, so each case has a process of its own.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

BLOCKED = """
import sys

sys.modules[sys.argv[1]] = None
import nnasync as nn
try:
    exec(sys.argv[2])
except (nn.errors.InvalidArgument, ImportError) as error:
    print(f"{type(error).__name__}: {error}")
"""

CASES = [
    ("starlette", "from nnasync.asgi import Networks", "asgi"),
    ("starlette", "from nnasync import asgi; asgi.HangUps", "asgi"),
    ("starlette", "from nnasync.serving import http_app", "serve"),
    ("ray", "from nnasync import ray; ray.app(print)", "ray"),
    ("ray", "from nnasync import ray; ray.device('litert-cpu')", "ray"),
    (
        "av",
        "from nnasync.streaming import open_audio; open_audio()",
        "media",
    ),
    ("av", "from nnasync.cli import main; main(['demo'])", "demo"),
    ("uvicorn", "from nnasync.cli import main; main(['serve', 'x.tflite'])", "serve"),
    ("google", "from nnasync.cli import main; main(['serve', 'x.tflite'])", "serve"),
    ("uvicorn", "from nnasync.cli import main; main(['live'])", "live"),
    ("pyarrow", "from nnasync.streaming import results_file; results_file('x.parquet')", "parquet"),
    ("ai_edge_litert", "nn.sync.open_runtime(devices=['litert-cpu']).__enter__()", "litert"),
    ("ai_edge_litert", "nn.sync.open_runtime(isolate=['litert-cpu']).__enter__()", "litert"),
]


@pytest.mark.parametrize(("package", "code", "extra"), CASES)
def test_what_is_missing_is_named_with_the_line_that_installs_it(
    package: str, code: str, extra: str
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", BLOCKED, package, code], capture_output=True, text=True, timeout=60
    )
    told = ran.stdout + ran.stderr
    assert f"pip install 'nnasync[{extra}]'" in told
    assert "Traceback" not in told


def test_what_needs_no_package_is_there_without_it() -> None:
    code = "from nnasync import asgi, serving; print(asgi.Limits(), serving.ModelServer)"
    ran = subprocess.run(
        [sys.executable, "-c", BLOCKED, "starlette", code],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "Limits(" in ran.stdout
