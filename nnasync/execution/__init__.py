"""Executions of a compiled network: calls, launches and bursts, and the memory they run in."""

from nnasync.execution.burst import Burst as Burst
from nnasync.execution.burst import BurstStatistics as BurstStatistics
from nnasync.execution.launch import Execution as Execution
from nnasync.execution.net import Closing as Closing
from nnasync.execution.net import Net as Net
from nnasync.execution.ports import Port as Port

__all__ = ["Burst", "BurstStatistics", "Closing", "Execution", "Net", "Port"]
