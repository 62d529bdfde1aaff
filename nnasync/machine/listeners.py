"""What of ours listens on this machine: device services, monitored runtimes, servers.

Nobody is connected to: the kernel's own tables say which sockets are listened at. Sockets in the
folder of this user's sockets are ours by their place, ports by the process that has them, where its
command line names nnasync; of other users' processes that cannot be seen.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
from collections.abc import Iterator
from typing import Literal

from nnasync.hal import Struct
from nnasync.machine.facts import text_of

_ACCEPTS = 0x10000
_LISTENS = "0A"
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_OURS = re.compile(r"\bnnasync\b")

Kind = Literal["device service", "monitored runtime", "port"]


class Listener(Struct, frozen=True):
    """A place where something of ours listens.

    address: a path, or host and port. is_alive: false of a socket that somebody left behind.
    is_open: whether other machines may reach it. pid: of the process, 0 where it is not known.
    """

    kind: Kind
    address: str
    is_alive: bool = True
    is_open: bool = False
    pid: int = 0


def listeners(folder: str, root: str = "/") -> list[Listener]:
    """Sockets in the folder of this user's sockets, and ports of processes of nnasync."""
    return [*_sockets(folder, root), *_ports(root)]


def _sockets(folder: str, root: str) -> Iterator[Listener]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    alive = {
        fields[7]
        for line in text_of(root, "proc/net/unix").splitlines()[1:]
        if len(fields := line.split(maxsplit=7)) == 8 and _hexadecimal(fields[3]) & _ACCEPTS
    }
    for name in names:
        path = os.path.join(folder, name)
        stem, suffix = os.path.splitext(name)
        if suffix == ".monitor":
            pid = stem.partition("-")[0]
            number = int(pid) if pid.isdecimal() else 0
            yield Listener("monitored runtime", path, path in alive, pid=number)
        elif suffix == ".socket":
            yield Listener("device service", path, path in alive)


def _ports(root: str) -> Iterator[Listener]:
    owners = dict(_owners(root))
    for table in ("proc/net/tcp", "proc/net/tcp6"):
        for line in text_of(root, table).splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] == _LISTENS and fields[9] in owners:
                host, _, port = fields[1].partition(":")
                address = _address(host)
                if address is not None:
                    place = f"[{address}]" if address.version == 6 else f"{address}"
                    place += f":{_hexadecimal(port)}"
                    is_open = not address.is_loopback
                    yield Listener("port", place, is_open=is_open, pid=owners[fields[9]])


def _owners(root: str) -> Iterator[tuple[str, int]]:
    """Numbers of sockets with the processes of nnasync that have them."""
    folder = os.path.join(root, "proc")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    for name in names:
        if name.isdecimal() and _OURS.search(text_of(folder, name, "cmdline").replace("\0", " ")):
            with contextlib.suppress(OSError):
                place = os.path.join(folder, name, "fd")
                for number in os.listdir(place):
                    if found := _SOCKET.fullmatch(_link(os.path.join(place, number))):
                        yield found[1], int(name)


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address as the kernel writes it: words of 32 bits, each in this machine's order."""
    try:
        data = bytes.fromhex(text)
        words = [data[at : at + 4][::-1] for at in range(0, len(data), 4)]
        found = ipaddress.ip_address(b"".join(words))
    except ValueError:
        return None
    # A socket for both families that is bound to 127.0.0.1 has that as ::ffff:127.0.0.1.
    return getattr(found, "ipv4_mapped", None) or found


def _hexadecimal(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0
