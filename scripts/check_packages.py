"""The packages as users get them: built, installed into empty environments, and run there.

    python -m scripts.check_packages                      # nnasync alone, each extra, all together
    python -m scripts.check_packages --extra "" --extra media --python /usr/bin/python3.13

Builds the sdist, and the wheel from the sdist, then makes an environment for each extra and nothing
but it. In each pip finds nothing that does not fit, `nnasync doctor` finds the packages of the
extra, and a program runs that needs them. Ends with 1 where one fails; takes half a minute and more
for each, and needs the package index.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

__all__ = ["PROGRAMS", "main"]

ROOT = Path(__file__).resolve().parent.parent
ALL = "all together"

_NETWORK = """
import numpy as np
import nnasync as nn

async def answer(*devices):
    builder = nn.ModelBuilder("double")
    x = builder.input("x", (1, 4))
    builder.output("y", builder.add(x, x))
    async with nn.open_runtime(devices=devices or None) as runtime:
        net = await runtime.compile(builder.build())
        assert (await net(np.ones((1, 4), np.float32))).tolist() == [[2, 2, 2, 2]]
"""


def _on(device: str) -> str:
    return f"{_NETWORK}\nnn.run(answer, {device!r})"


_ENGINES = "\n".join(
    [_NETWORK, *(f"nn.run(answer, '{name}-cpu')" for name in ("litert", "openvino", "onnxruntime"))]
)
PROGRAMS: dict[str, str] = {
    "": f"{_NETWORK}\nnn.run(answer)\nfrom nnasync.cli import main\nassert main(['devices']) == 0",
    "asgi": "from nnasync.asgi import Answers, HangUps, Networks, RequestSpans",
    "demo": "import nnasync.cli.demo.picture, matplotlib, rich\n"
    "from nnasync.cli import main; main(['demo', '--help'])",
    "engines": _ENGINES,
    "experiments": "import pandas, pyarrow, rich, nnasync.experiments",
    "fuzz": "import atheris; from nnasync.suites.fuzz import check_guide; check_guide()",
    "litert": _on("litert-cpu"),
    "live": "import websockets, nnasync.streaming.webrtc\n"
    "import nnasync.cli.live.app, nnasync.cli.live.guard, nnasync.cli.live.server",
    "media": "import av, nnasync.streaming as s; s.camera, s.video_file",
    "onnxruntime": _on("onnxruntime-cpu"),
    "openvino": _on("openvino-cpu"),
    "otel": "import opentelemetry.trace, nnasync.tracing.otel",
    "parquet": "import pyarrow, nnasync.experiments",
    "ray": "import nnasync.ray",
    "serve": "import nnasync.serving.http_server, nnasync.serving.grpc_front.listening",
    "testing": "import hypothesis, nnasync.conformance",
    "trio": f"{_NETWORK}\nimport trio\ntrio.run(answer)",
    "webrtc": "import aiortc, nnasync.streaming.webrtc",
}
"""What has to run with each extra, and "" with none; those of engines answer with that engine."""


def main() -> int:
    """Check what the arguments name, and say what failed."""
    arguments = _arguments()
    wanted = arguments.extra if arguments.extra is not None else [*PROGRAMS, ALL]
    failed = []
    with tempfile.TemporaryDirectory(prefix="nnasync-packages-") as folder:
        wheel = _built(arguments.python, Path(folder))
        for extra in wanted:
            began = time.monotonic()
            problem = _tried(arguments.python, wheel, extra, Path(folder))
            took_s = time.monotonic() - began
            print(f"{extra or 'alone'}: {problem or 'fine'} ({took_s:.0f} s)", flush=True)
            failed += [extra] if problem else []
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="the interpreter to check with")
    parser.add_argument(
        "--extra", action="append", choices=[*PROGRAMS, ALL], help='one of them; "" for none'
    )
    return parser.parse_args()


def _built(python: str, folder: Path) -> Path:
    """The wheel of the sdist, built without the index: the backend is all that is needed."""
    tools = _environment(python, folder / "tools")
    _run(tools, "-m", "pip", "install", "--quiet", "hatchling")
    build = "import hatchling.build, sys; print(hatchling.build.build_sdist(sys.argv[1]))"
    name = _run(tools, "-c", build, str(folder), cwd=ROOT).split()[-1]
    options = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation")
    _run(tools, "-m", "pip", "wheel", *options, "-w", str(folder), str(folder / name))
    (wheel,) = folder.glob("nnasync-*.whl")
    return wheel


def _tried(python: str, wheel: Path, extra: str, folder: Path) -> str:
    """What is wrong with an extra in an environment of its own; empty if nothing is."""
    names = [each for each in PROGRAMS if each] if extra == ALL else [extra] if extra else []
    try:
        inner = _environment(python, folder / f"with-{extra.replace(' ', '-')}")
        wanted = f"{wheel}[{','.join(names)}]" if names else str(wheel)
        _run(inner, "-m", "pip", "install", "--quiet", wanted)
        _run(inner, "-m", "pip", "check")
        _examined(inner, names)
        for name in ["", *names]:
            _run(inner, "-c", PROGRAMS[name])
    except subprocess.SubprocessError as error:
        output = getattr(error, "stderr", "") or ""
        return f"{error}\n{output.strip()}"
    except ValueError as error:
        return str(error)
    return ""


def _examined(python: str, extras: list[str]) -> None:
    """Raise ValueError where the doctor misses a package of the extras, or finds one unfit."""
    done = subprocess.run(
        [python, "-m", "nnasync", "doctor", "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=Path(python).parent,
    )
    packages = json.loads(done.stdout)["surroundings"]["installation"]["packages"]
    for each in packages:
        is_wanted = not each["extras"] or set(each["extras"]).intersection(extras)
        if is_wanted and not (each["version"] and each["fits"]):
            raise ValueError(f"the doctor finds of {each['name']}: {each['version'] or 'nothing'}")


def _environment(python: str, folder: Path) -> str:
    subprocess.run([python, "-m", "venv", str(folder)], check=True, timeout=300)
    return str(folder / "bin" / "python")


def _run(python: str, *words: str, cwd: Path | None = None) -> str:
    """What a command says; away from the sources, so that what is installed is what runs."""
    return subprocess.run(
        [python, *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=1800,
        cwd=cwd or Path(python).parent,
    ).stdout


if __name__ == "__main__":
    sys.exit(main())
