"""Where everything is, several times a second: accounts, what threads ran, how busy cores are."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from nnasync import now_ns
from nnasync.cli.live.activity import Activity, Run
from nnasync.cli.live.link import StreamSettings
from nnasync.cli.live.load_keeper import LoadKeeper
from nnasync.cli.live.messages import LinkState, StreamName, Tick, TickSettings, TickStream
from nnasync.cli.live.networks import Networks
from nnasync.machine import CpuMeter

_BUSY_TICKS = 5
_RATE_TICKS = 10


class Ticker:
    """Makes ticks; each has what happened since the last one."""

    def __init__(
        self,
        networks: Networks,
        activity: Activity,
        load: LoadKeeper,
        settings: Mapping[StreamName, StreamSettings],
    ) -> None:
        self._networks = networks
        self._settings = settings
        self._activity = activity
        self._load = load
        self._meter = CpuMeter()
        self._busy = self._meter.read()
        self._ticks = 0
        self._answered: deque[tuple[int, int]] = deque(maxlen=_RATE_TICKS)
        self._runs: tuple[Run, ...] = ()

    @property
    def cores(self) -> int:
        """Returns how many cores the process may use."""
        return self._busy.cores

    def advance(self) -> None:
        """Take what happened since the last tick."""
        self._runs = tuple(self._activity.take())
        self._answered.append((now_ns(), self._load.answered))
        self._ticks += 1
        if self._ticks % _BUSY_TICKS == 0:
            self._busy = self._meter.lap()

    def tick(
        self,
        streams: dict[StreamName, TickStream],
        network: LinkState,
        viewers: int,
        refused: int,
    ) -> Tick:
        """The tick for those who watch these streams."""
        priorities = self._networks.priorities
        lanes = _index(run.lane for run in self._runs)
        names = _index(priorities)
        return Tick(
            now_ms=round(now_ns() / 1e6, 1),
            settings={
                name: TickSettings(each.priority.name, each.budget_ns // 1_000_000)
                for name, each in self._settings.items()
            },
            streams=streams,
            lanes=tuple(lanes),
            networks=tuple((name, priorities[name].name) for name in names),
            spans=tuple(
                (
                    lanes[run.lane],
                    names[run.network],
                    round(run.start_ns / 1e6, 2),
                    round((run.end_ns - run.start_ns) / 1e6, 2),
                )
                for run in self._runs
                if run.network in names
            ),
            machine_busy=round(self._busy.machine, 3),
            process_busy=round(self._busy.process, 3),
            load_clients=self._load.clients,
            load_hz=round(self._rate_hz(), 1),
            network=network,
            driver_pid=self._networks.driver_pid,
            driver_deaths=self._networks.deaths,
            viewers=viewers,
            refused=refused,
        )

    def _rate_hz(self) -> float:
        (first_ns, first), (last_ns, last) = self._answered[0], self._answered[-1]
        return (last - first) * 1e9 / max(last_ns - first_ns, 1)


def _index(names: Iterable[str]) -> dict[str, int]:
    """Returns each name once, with its place."""
    return {name: place for place, name in enumerate(dict.fromkeys(names))}
