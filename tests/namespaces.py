"""Another machine, as far as the network goes: a network namespace behind a cable of its own.

What runs in it has no other way to the rest, so with the cable cut nothing arrives and no
connection ends, as in a partition. Making one needs privileges that tests seldom have.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

__all__ = ["Namespace", "namespace"]


class Namespace:
    """A namespace, reached at `there` from `here`, which are both addresses of its cable."""

    def __init__(self, number: int) -> None:
        self.name = f"nnasync{os.getpid()}-{number}"
        self._ends = f"nna{os.getpid()}-{number}", f"nnb{os.getpid()}-{number}"
        place = 4 * (os.getpid() % (1 << 14) + number)
        network = f"10.{201 + place // 65536}.{place // 256 % 256}"
        self.here, self.there = f"{network}.{place % 256 + 1}", f"{network}.{place % 256 + 2}"

    def make(self) -> None:
        """Make it, with its cable."""
        near, far = self._ends
        ip("netns", "add", self.name)
        ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", self.name)
        ip("address", "add", f"{self.here}/30", "dev", near)
        ip("link", "set", near, "up")
        ip("-n", self.name, "address", "add", f"{self.there}/30", "dev", far)
        ip("-n", self.name, "link", "set", "lo", "up")
        self.mend()

    def command(self, *command: str) -> list[str]:
        """A command that runs in it."""
        return ["ip", "netns", "exec", self.name, *command]

    def cut(self) -> None:
        """Have nothing arrive any more, on either side."""
        ip("-n", self.name, "link", "set", self._ends[1], "down")

    def mend(self) -> None:
        """Have everything arrive again."""
        ip("-n", self.name, "link", "set", self._ends[1], "up")

    def end(self) -> None:
        """Remove it, and its cable with it; what runs in it keeps it until that has ended."""
        with contextlib.suppress(OSError):
            ip("link", "delete", self._ends[0])
        with contextlib.suppress(OSError):
            ip("netns", "delete", self.name)


@contextlib.contextmanager
def namespace(number: int = 0) -> Iterator[Namespace]:
    """A namespace while the block runs; skips the test where none can be made."""
    if shutil.which("ip") is None:
        pytest.skip("there is no command ip (iproute2), which makes namespaces of the network")
    made = Namespace(number)
    try:
        try:
            made.make()
        except OSError as error:
            pytest.skip(f"no namespaces of the network can be made here: {error}")
        yield made
    finally:
        made.end()


def ip(*arguments: str) -> None:
    """Run `ip`; raises OSError with what it says where it fails."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
