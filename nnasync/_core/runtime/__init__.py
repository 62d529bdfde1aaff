"""The composition root: devices, workers and clocks under one async context manager.

A runtime belongs to one event loop. While it is open it holds two settings of the process that all
of its threads share, and restores them at the end: BLAS runs one thread per call (the workers are
the parallelism), and the interpreter offers its lock more often than by default, without which a
loop beside busy workers lags by many milliseconds.
"""

from nnasync._core.runtime.compile_request import CompileOptions as CompileOptions
from nnasync._core.runtime.event_loop import run as run
from nnasync._core.runtime.options import Options as Options
from nnasync._core.runtime.runtime import Runtime as Runtime
from nnasync._core.runtime.runtime import RuntimeStatistics as RuntimeStatistics
from nnasync._core.runtime.runtime import open_runtime as open_runtime

__all__ = ["CompileOptions", "Options", "Runtime", "RuntimeStatistics", "open_runtime", "run"]
