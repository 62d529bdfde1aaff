"""A picture of a runtime as text for a terminal, within 100 columns.

What is not known is a dash. Names come from other processes and files, and are printed without what
a terminal would obey.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nnasync.cli.text import table
from nnasync.cli.top.view import ClientRow, NetworkRow, Picture

_LOST = ("missed", "refused", "failed", "cancelled")
_COLUMNS: dict[str, Callable[[NetworkRow], str]] = {
    "network": lambda row: f"  {_cut(row.network)}",
    "priority": lambda row: _plain(row.priority),
    "calls/s": lambda row: _rate(row.calls),
    "now": lambda row: _number(row.in_flight),
    "in time": lambda row: _share(row),
    "run p50": lambda row: _time(row.run_median_s),
    "p99": lambda row: _time(row.run_p99_s),
    "wait p99": lambda row: _time(row.queue_p99_s),
    "lost/s": lambda row: _lost(row),
}
_CLIENT_COLUMNS: dict[str, Callable[[ClientRow], str]] = {
    "client": lambda row: _cut(row.client, 39),
    "cores": lambda row: f"{row.busy:.2f}",
    "runs/s": lambda row: _rate(row.runs),
    "queued": lambda row: f"{row.queued:.0f}",
    "links": lambda row: f"{row.connections}",
    "lost/s": lambda row: _lost(row),
}
_NAME = 20


def as_text(title: str, seen: Picture) -> str:
    """Returns a picture as lines of text, under a title: the networks of each device together.

    A priority at which nothing was called meanwhile has a row only where its network has no other.
    """
    pools = "-" if seen.pool_bytes is None else f"{seen.pool_bytes / 1e6:.1f} MB"
    facts = [
        f"{seen.busy:.2f} cores busy",
        f"{_number(seen.running)} running",
        f"waiting: {_waiting(seen.queued)}",
        f"{_rate(seen.preemptions)} preemptions/s",
        f"pools {pools}",
    ]
    lines = [title, "  " + "; ".join(facts)]
    rows = _with_calls(seen.networks)
    head, under, *told = table(
        list(_COLUMNS), [[show(row) for show in _COLUMNS.values()] for row in rows]
    ).splitlines()
    if rows:
        lines += ["", f"  {head}".rstrip(), f"  {under}"]
    processes = {each.device: each.pid for each in seen.devices}
    for device in dict.fromkeys([*(row.device for row in rows), *processes]):
        lines.append(f"  {_plain(device)}{_process(processes.get(device))}")
        lines += [f"  {line}" for line, row in zip(told, rows, strict=True) if row.device == device]
    return "\n".join([*lines, *_clients(seen.clients)])


def _clients(clients: tuple[ClientRow, ...]) -> Iterator[str]:
    """A table of clients, those that use most first."""
    if clients:
        rows = sorted(clients, key=lambda row: (-row.busy, row.client))
        cells = [[show(row) for show in _CLIENT_COLUMNS.values()] for row in rows]
        yield ""
        yield from (f"  {line}" for line in table(list(_CLIENT_COLUMNS), cells).splitlines())


def _waiting(queued: dict[str, float] | None) -> str:
    if queued is None:
        return "-"
    told = (f"{count:.0f} {_plain(name)}" for name, count in queued.items() if count)
    return ", ".join(told) or "none"


def _with_calls(networks: tuple[NetworkRow, ...]) -> list[NetworkRow]:
    """The rows that say something: those with calls, and one of each network that has none."""
    called = [row for row in networks if row.calls or row.in_flight or _lost(row)]
    known = {(row.network, row.device) for row in called}
    for row in networks:
        if (row.network, row.device) not in known:
            known.add((row.network, row.device))
            called.append(row)
    return sorted(called, key=lambda row: (row.device, row.network, row.priority))


def _process(pid: int | None) -> str:
    if pid is None:
        return ""
    return f", process {pid}" if pid else ", no process now"


def _cut(name: str, most: int = _NAME) -> str:
    told = _plain(name)
    return told if len(told) <= most else f"{told[: most - 3]}..."


def _plain(name: str) -> str:
    """A name of another process on one line, without what a terminal would obey."""
    return "".join(each if each.isprintable() else "?" for each in name) or "-"


def _lost(row: NetworkRow | ClientRow) -> str:
    counts = {name: getattr(row, name, None) for name in _LOST}
    return ", ".join(f"{_rate(count)} {name}" for name, count in counts.items() if count)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 100 or value == 0 else f"{value:.1f}"


def _share(row: NetworkRow) -> str:
    completed = row.completed or 0.0
    ended = completed + sum(each or 0.0 for each in (row.missed, row.refused, row.failed))
    return f"{completed / ended:.1%}" if ended else "-"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"
