"""Experiments: what-if questions to a scheduling policy, asked in virtual time.

A `Workload` is streams of requests: when they come, what they cost, how urgent they are. A run
drives the policy with it and gives a `RunResult`; a simulated one and a real one give the same
record, so that they can stand side by side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnasync._core.deferred import names

if TYPE_CHECKING:
    from nnasync.experiments.arrivals import ClosedLoop as ClosedLoop
    from nnasync.experiments.arrivals import Gamma as Gamma
    from nnasync.experiments.arrivals import OnOff as OnOff
    from nnasync.experiments.arrivals import Periodic as Periodic
    from nnasync.experiments.arrivals import Poisson as Poisson
    from nnasync.experiments.arrivals import Trace as Trace
    from nnasync.experiments.comparison import Change as Change
    from nnasync.experiments.comparison import Comparison as Comparison
    from nnasync.experiments.comparison import compare as compare
    from nnasync.experiments.costs import Batching as Batching
    from nnasync.experiments.costs import Constant as Constant
    from nnasync.experiments.costs import Exponential as Exponential
    from nnasync.experiments.costs import Histogram as Histogram
    from nnasync.experiments.costs import Lognormal as Lognormal
    from nnasync.experiments.costs import Network as Network
    from nnasync.experiments.costs import Recorded as Recorded
    from nnasync.experiments.costs import RunTimes as RunTimes
    from nnasync.experiments.costs import Steps as Steps
    from nnasync.experiments.delays import Delays as Delays
    from nnasync.experiments.experiment import Experiment as Experiment
    from nnasync.experiments.experiment import Point as Point
    from nnasync.experiments.experiment import experiment_of as experiment_of
    from nnasync.experiments.fidelity import Fidelity as Fidelity
    from nnasync.experiments.figures import Figures as Figures
    from nnasync.experiments.files import read_experiment as read_experiment
    from nnasync.experiments.intervals import Interval as Interval
    from nnasync.experiments.latencies import Latencies as Latencies
    from nnasync.experiments.latencies import LatencyHistogram as LatencyHistogram
    from nnasync.experiments.overheads import Overheads as Overheads
    from nnasync.experiments.overheads import overheads_here as overheads_here
    from nnasync.experiments.real import run_real as run_real
    from nnasync.experiments.record import Outcome as Outcome
    from nnasync.experiments.record import Recorder as Recorder
    from nnasync.experiments.record import Recording as Recording
    from nnasync.experiments.record import RequestRow as RequestRow
    from nnasync.experiments.record import RunResult as RunResult
    from nnasync.experiments.record import Span as Span
    from nnasync.experiments.record import StreamResult as StreamResult
    from nnasync.experiments.report.written import WrittenReport as WrittenReport
    from nnasync.experiments.report.written import write_report as write_report
    from nnasync.experiments.results import Results as Results
    from nnasync.experiments.results import read_results as read_results
    from nnasync.experiments.run_of_point import Run as Run
    from nnasync.experiments.running import run as run
    from nnasync.experiments.simulation import simulate as simulate
    from nnasync.experiments.workload import Stream as Stream
    from nnasync.experiments.workload import Workload as Workload
    from nnasync.experiments.workload import arrival_blocks as arrival_blocks
    from nnasync.experiments.workload import at_load as at_load
    from nnasync.experiments.workload import costs_of as costs_of
    from nnasync.experiments.workload import offered_load as offered_load
    from nnasync.experiments.workload import request_blocks as request_blocks
    from nnasync.experiments.workload import think_times as think_times

__all__ = [
    "Batching",
    "Change",
    "ClosedLoop",
    "Comparison",
    "Constant",
    "Delays",
    "Experiment",
    "Exponential",
    "Fidelity",
    "Figures",
    "Gamma",
    "Histogram",
    "Interval",
    "Latencies",
    "LatencyHistogram",
    "Lognormal",
    "Network",
    "OnOff",
    "Outcome",
    "Overheads",
    "Periodic",
    "Point",
    "Poisson",
    "Recorded",
    "Recorder",
    "Recording",
    "RequestRow",
    "Results",
    "Run",
    "RunResult",
    "RunTimes",
    "Span",
    "Steps",
    "Stream",
    "StreamResult",
    "Trace",
    "Workload",
    "WrittenReport",
    "arrival_blocks",
    "at_load",
    "compare",
    "costs_of",
    "experiment_of",
    "offered_load",
    "overheads_here",
    "read_experiment",
    "read_results",
    "request_blocks",
    "run",
    "run_real",
    "simulate",
    "think_times",
    "write_report",
]

__getattr__ = names(
    __name__,
    {
        "Batching": "costs",
        "Change": "comparison",
        "ClosedLoop": "arrivals",
        "Comparison": "comparison",
        "Constant": "costs",
        "Delays": "delays",
        "Experiment": "experiment",
        "Exponential": "costs",
        "Fidelity": "fidelity",
        "Figures": "figures",
        "Gamma": "arrivals",
        "Histogram": "costs",
        "Interval": "intervals",
        "Latencies": "latencies",
        "LatencyHistogram": "latencies",
        "Lognormal": "costs",
        "Network": "costs",
        "OnOff": "arrivals",
        "Outcome": "record",
        "Overheads": "overheads",
        "Periodic": "arrivals",
        "Point": "experiment",
        "Poisson": "arrivals",
        "Recorded": "costs",
        "Recorder": "record",
        "Recording": "record",
        "RequestRow": "record",
        "Results": "results",
        "Run": "run_of_point",
        "RunResult": "record",
        "RunTimes": "costs",
        "Span": "record",
        "Steps": "costs",
        "Stream": "workload",
        "StreamResult": "record",
        "Trace": "arrivals",
        "Workload": "workload",
        "WrittenReport": "report.written",
        "arrival_blocks": "workload",
        "at_load": "workload",
        "compare": "comparison",
        "costs_of": "workload",
        "experiment_of": "experiment",
        "offered_load": "workload",
        "overheads_here": "overheads",
        "read_experiment": "files",
        "read_results": "results",
        "request_blocks": "workload",
        "run": "running",
        "run_real": "real",
        "simulate": "simulation",
        "think_times": "workload",
        "write_report": "report.written",
    },
)
