"""Observing the runtime: instruments, a timeline for Perfetto, VLOG lines and metrics.

`Instrument` and `Tracer` are the hooks that cost nothing where nobody looks, and `vlog` is NNAPI's
verbose log, chosen by the environment variable NNASYNC_VLOG. On them stand the `Timeline`, which
`chrome_trace` makes a trace of; `nnasync.tracing.metrics`; `nnasync.tracing.endpoint`; and
`monitored`, which shows a runtime to `nnasync top`. What few programs need is loaded when it is
used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnasync._core.deferred import names
from nnasync.tracing.instruments import Hooks as Hooks
from nnasync.tracing.instruments import Instrument as Instrument
from nnasync.tracing.instruments import Traced as Traced
from nnasync.tracing.instruments import Tracer as Tracer
from nnasync.tracing.marks import Layer as Layer
from nnasync.tracing.marks import Mark as Mark
from nnasync.tracing.marks import Phase as Phase
from nnasync.tracing.spans import SWITCH as SWITCH
from nnasync.tracing.spans import span as span
from nnasync.tracing.statistic_kinds import Count as Count
from nnasync.tracing.statistic_kinds import labeled as labeled
from nnasync.tracing.verbose import vlog as vlog

if TYPE_CHECKING:
    from nnasync.tracing.chrome import chrome_trace as chrome_trace
    from nnasync.tracing.chrome import write_trace as write_trace
    from nnasync.tracing.execution_log import ExecutionLog as ExecutionLog
    from nnasync.tracing.monitoring import Monitor as Monitor
    from nnasync.tracing.monitoring import monitored as monitored
    from nnasync.tracing.monitoring import monitors as monitors
    from nnasync.tracing.records import Flow as Flow
    from nnasync.tracing.records import Span as Span
    from nnasync.tracing.timeline import Timeline as Timeline

__all__ = [
    "Count",
    "Flow",
    "Hooks",
    "Instrument",
    "Layer",
    "Mark",
    "ExecutionLog",
    "Monitor",
    "Phase",
    "SWITCH",
    "Span",
    "Timeline",
    "Traced",
    "Tracer",
    "chrome_trace",
    "labeled",
    "monitored",
    "monitors",
    "span",
    "vlog",
    "write_trace",
]

__getattr__ = names(
    __name__,
    {
        "Flow": "timeline",
        "ExecutionLog": "execution_log",
        "Span": "timeline",
        "Timeline": "timeline",
        "Monitor": "monitoring",
        "chrome_trace": "chrome",
        "monitored": "monitoring",
        "monitors": "monitoring",
        "write_trace": "chrome",
    },
)
