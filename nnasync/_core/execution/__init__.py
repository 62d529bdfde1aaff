"""Executions of a compiled network: calls, launches and bursts, and the memory they run in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnasync._core.deferred import names
from nnasync._core.execution.launch import Execution as Execution
from nnasync._core.execution.measured import Measured as Measured
from nnasync._core.execution.net import Net as Net
from nnasync._core.execution.ports import Port as Port

if TYPE_CHECKING:
    from nnasync._core.execution.burst import Burst as Burst
    from nnasync._core.execution.calls import BurstStatistics as BurstStatistics

__all__ = ["Burst", "BurstStatistics", "Execution", "Measured", "Net", "Port"]

__getattr__ = names(__name__, {"Burst": "burst", "BurstStatistics": "calls"})
