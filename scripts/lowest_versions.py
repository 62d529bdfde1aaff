"""The tests of serving, with the lowest versions of its packages that pyproject.toml declares.

    python -m scripts.lowest_versions                # the extras serve and asgi
    python -m scripts.lowest_versions --print        # the versions alone

Makes an environment in a folder of its own, installs this project there and the packages of the
extras at exactly their lower bounds, and runs tests/serving and tests/asgi. Ends with the status of
the tests; needs the package index. Nightly runs call it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path

__all__ = ["lowest", "main"]

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ("serve", "asgi")
TESTS = ("tests/serving", "tests/asgi")
_TOOLS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "httpx", "trio", "uvloop")
_BESIDE = ("cryptography", "fastapi", "opentelemetry-sdk")
_BOUND = re.compile(r"([A-Za-z0-9_.-]+)(?:\[[^]]*\])?>=([0-9][0-9.]*)")


def lowest(requirements: Sequence[str]) -> list[str]:
    """Each requirement that has a lower bound, at that bound: "a>=1.2" becomes "a==1.2.*".

    Raises ValueError for one without a bound, of which nothing could be promised.
    """
    found = []
    for requirement in requirements:
        bound = _BOUND.match(requirement)
        if bound is None:
            raise ValueError(f"{requirement!r} has no lower bound, such as package>=1.2")
        found.append(f"{bound[1]}=={bound[2]}.*")
    return found


def declared() -> list[str]:
    """The requirements of the extras, each once."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    return list(dict.fromkeys(each for extra in EXTRAS for each in extras[extra]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests; the status of pytest."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--print", action="store_true", help="print the versions, and do no more")
    pins = lowest(declared())
    if parser.parse_args(arguments).print:
        print("\n".join(pins))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / "bin" / "python")
        install = [python, "-m", "pip", "install", "--quiet"]
        subprocess.run([*install, "-e", str(ROOT), *pins, *_TOOLS, *_BESIDE], check=True)
        tests = [python, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *TESTS]
        return subprocess.run(tests, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
