"""What is around a program on a machine: interpreter, packages, folders, other processes, devices.

`read_surroundings` takes the time in which it watches other processes, and writes nothing but an
empty file without a name, into folders that are there, to see whether that can be done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from nnasync._core.packages import is_importable, version_of
from nnasync._core.state_files import socket_folder, state_folder
from nnasync.hal import Struct
from nnasync.machine.busy import BusyProcess, busy_processes
from nnasync.machine.folders import FolderFacts, examine_folder
from nnasync.machine.installation import Installation, read_installation
from nnasync.machine.listeners import Listener, listeners
from nnasync.machine.peripherals import Peripheral, cameras, microphones

_WATCHED_S = 0.2


class Surroundings(Struct, frozen=True):
    """What was found, as the parts say; `event_loop` is what `nnasync.run` makes, with its version.

    reads_media: whether there is a package that reads cameras, microphones and files.
    """

    installation: Installation
    event_loop: str
    folders: tuple[FolderFacts, ...] = ()
    busy: tuple[BusyProcess, ...] = ()
    listeners: tuple[Listener, ...] = ()
    cameras: tuple[Peripheral, ...] = ()
    microphones: tuple[Peripheral, ...] = ()
    reads_media: bool = True


def read_surroundings(
    caches: Iterable[str] = (),
    root: str = "/",
    wait: Callable[[], object] = lambda: time.sleep(_WATCHED_S),
) -> Surroundings:
    """Examines the surroundings on this machine, or on one whose files lie below a folder.

    `caches` are folders of `cache_dir=` that are examined beside that of the state. Other processes
    are watched while `wait` blocks, by default for a fifth of a second.
    """
    folders = [examine_folder("state", state_folder())]
    folders += [examine_folder("cache", path) for path in caches]
    return Surroundings(
        installation=read_installation(),
        event_loop=_event_loop(),
        folders=tuple(folders),
        busy=tuple(busy_processes(wait, root)),
        listeners=tuple(listeners(socket_folder(), root)),
        cameras=tuple(cameras(root)),
        microphones=tuple(microphones(root)),
        reads_media=is_importable("av"),
    )


def _event_loop() -> str:
    return f"uvloop {version_of('uvloop')}" if is_importable("uvloop") else "asyncio"
