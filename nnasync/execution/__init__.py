"""Executions of a compiled network: calls, launches and bursts, and the memory they run in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnasync.deferred import names
from nnasync.execution.closing import Closing as Closing
from nnasync.execution.launch import Execution as Execution
from nnasync.execution.net import Net as Net
from nnasync.execution.ports import Measured as Measured
from nnasync.execution.ports import Port as Port

if TYPE_CHECKING:
    from nnasync.execution.burst import Burst as Burst
    from nnasync.execution.burst import BurstStatistics as BurstStatistics

__all__ = ["Burst", "BurstStatistics", "Closing", "Execution", "Measured", "Net", "Port"]

__getattr__ = names(__name__, {"Burst": "burst", "BurstStatistics": "burst"})
