"""What around a program stands in the way: packages, folders, other processes, missing devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nnasync.machine.installation import NEWEST, OLDEST, PackageFacts
from nnasync.machine.obstacles import Obstacle
from nnasync.machine.surroundings import Surroundings

_FOREIGN_CORES = 0.25
_NAMED = 3
_LITTLE_BYTES = 64 << 20


def find_obstacles_around(found: Surroundings) -> tuple[Obstacle, ...]:
    """Returns the obstacles around a program, the worst first."""
    return tuple(obstacle for check in _CHECKS for obstacle in check(found))


def _python(found: Surroundings) -> Iterator[Obstacle]:
    installation = found.installation
    version = _dotted(installation.python)
    oldest, newest = _dotted(OLDEST), _dotted(NEWEST)
    if installation.implementation != "cpython":
        yield Obstacle(
            f"the interpreter is {installation.implementation}",
            "nnasync and the engines are made for CPython; others have never run them",
            f"CPython {oldest} to {newest}",
        )
    elif installation.python < OLDEST:
        yield Obstacle(
            f"this is Python {version}",
            f"nnasync needs {oldest} or later, and fails in one place or another",
            f"an environment with Python {oldest} to {newest}",
        )
    elif installation.python > NEWEST:
        yield Obstacle(
            f"this is Python {version}, which is newer than what nnasync is made for",
            "it may work; engines may have no packages for it yet",
            f"an environment with Python {oldest} to {newest}",
            hinders=False,
        )


def _packages(found: Surroundings) -> Iterator[Obstacle]:
    installation = found.installation
    if not installation.packages:
        yield Obstacle(
            "nnasync is not installed, it runs from a folder",
            "whether the packages fit that it uses cannot be told",
            "pip install . in that folder",
            hinders=False,
        )
    for package in installation.packages:
        if not package.fits:
            yield _unfit(package)


def _unfit(package: PackageFacts) -> Obstacle:
    there = f"{package.version} is there" if package.version else "nothing is there"
    return Obstacle(
        f"of {package.name} {there}, and {package.wanted} is wanted",
        f"what uses it may fail ({', '.join(package.extras) or 'all of nnasync'})",
        f"pip install '{package.name}{package.wanted}'",
    )


def _folders(found: Surroundings) -> Iterator[Obstacle]:
    for folder in found.folders:
        name = f"the folder of the {folder.purpose}, {folder.path},"
        if folder.problem:
            yield Obstacle(
                f"{name} cannot be written: {folder.problem}",
                "each start measures and compiles anew",
                "make it writable for this user, or choose another folder (NNASYNC_STATE_DIR,"
                " cache_dir=)",
            )
        elif not folder.is_ours:
            yield Obstacle(
                f"{name} belongs to another user, or others may write it",
                "who may write it chooses what is loaded from it",
                f"chmod go-w {folder.path}, or chown it to this user",
            )
        elif folder.free_bytes is not None and folder.free_bytes < _LITTLE_BYTES:
            yield Obstacle(
                f"{name} has {folder.free_bytes >> 20} MiB left",
                "compiled models and verdicts are not kept",
                "make room, or choose another folder (NNASYNC_STATE_DIR, cache_dir=)",
            )


def _busy(found: Surroundings) -> Iterator[Obstacle]:
    cores = sum(each.cores for each in found.busy)
    if cores >= _FOREIGN_CORES:
        named = [f"{each.name} ({each.pid}): {each.cores:.2f}" for each in found.busy[:_NAMED]]
        more = len(found.busy) - len(named)
        yield Obstacle(
            f"other processes take {cores:.2f} cores: {', '.join(named)}"
            + (f", and {more} more" if more else ""),
            "executions wait for a core beside them, and what is measured now is measured so",
            "end them, or give them other cores (taskset) or less of these (nice, cpu.weight)",
        )


def _open_ports(found: Surroundings) -> Iterator[Obstacle]:
    for each in found.listeners:
        if each.is_open:
            yield Obstacle(
                f"process {each.pid} of nnasync listens at {each.address}",
                "other machines may connect, if no firewall is between",
                "--host 127.0.0.1, if only this machine is to",
                hinders=False,
            )
        elif not each.is_alive:
            yield Obstacle(
                f"nobody listens any more at {each.address}",
                "none: the next service of this name takes its place",
                f"rm {each.address}",
                hinders=False,
            )


def _media(found: Surroundings) -> Iterator[Obstacle]:
    for kind, devices in (("camera", found.cameras), ("microphone", found.microphones)):
        if not devices:
            yield Obstacle(
                f"there is no {kind}",
                f"streams of a {kind} do not open; files and addresses do",
                "connect one; into a container it is handed with docker run --device",
                hinders=False,
            )
        for device in devices:
            if not device.is_readable:
                group = "video" if kind == "camera" else "audio"
                yield Obstacle(
                    f"this user may not open the {kind} {device.address} ({device.name})",
                    f"streams of this {kind} do not open",
                    f"usermod -a -G {group} USER, then log in anew",
                )
    if not found.reads_media and (found.cameras or found.microphones):
        yield Obstacle(
            "nothing is there to read cameras and microphones with",
            "streams of them do not open",
            "pip install 'nnasync[media]'",
            hinders=False,
        )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


_CHECKS: tuple[Callable[[Surroundings], Iterator[Obstacle]], ...] = (
    _python,
    _packages,
    _folders,
    _busy,
    _media,
    _open_ports,
)
