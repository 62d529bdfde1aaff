"""How much memory one execution may take on the reference device."""

from __future__ import annotations

from nnasync.errors import ModelError

__all__ = ["MAX_EXECUTION_BYTES", "check_memory"]

MAX_EXECUTION_BYTES = 1 << 32
"""Most bytes that the operands and the scratch of one execution may take together, by default."""


def check_memory(nbytes: int, limit_bytes: int = MAX_EXECUTION_BYTES) -> None:
    """Raise ModelError where an execution would need more than the limit."""
    if nbytes > limit_bytes:
        raise ModelError(f"an execution needs {nbytes} bytes of memory, of at most {limit_bytes}")
