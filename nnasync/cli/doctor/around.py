"""The lines of `nnasync doctor` about what is around a program."""

from __future__ import annotations

from collections.abc import Iterator

from nnasync.machine import Peripheral, Surroundings


def package_lines(found: Surroundings) -> Iterator[str]:
    """Yields the installed packages with their versions, and the extras that are missing."""
    installation = found.installation
    there = [f"{each.name} {each.version}" for each in installation.packages if each.version]
    for at in range(0, len(there), 5):
        yield ", ".join(there[at : at + 5])
    if absent := installation.absent_extras():
        yield f"extras that are not installed, or in part: {', '.join(absent)}"
    if not installation.packages:
        yield "unknown, as nnasync itself is not installed"


def folder_lines(found: Surroundings) -> Iterator[str]:
    """Yields the contents of folders, and how much more fits in."""
    for folder in found.folders:
        if folder.problem:
            told = folder.problem
        elif not folder.exists:
            told = "will be made when it is needed"
        else:
            told = f"{folder.files} files, {folder.size_bytes / 2**20:.1f} MiB"
        if folder.free_bytes is not None:
            told += f"; {folder.free_bytes >> 20} MiB free"
        yield f"{folder.purpose}: {folder.path}: {told}"


def listener_lines(found: Surroundings) -> Iterator[str]:
    """Yields where programs of ours listen."""
    for each in found.listeners:
        who = f", process {each.pid}" if each.pid else ""
        yield f"{each.kind}{who}: {each.address}{'' if each.is_alive else ', left behind'}"
    if not found.listeners:
        yield "none"


def media_lines(found: Surroundings) -> Iterator[str]:
    """Yields the cameras, microphones and packages for media."""
    devices: tuple[Peripheral, ...] = (*found.cameras, *found.microphones)
    for device in devices:
        may = "" if device.is_readable else ", not readable for this user"
        yield f"{device.kind} {device.address}: {device.name}{may}"
    if not devices:
        yield "none"
