"""Which memory pools a HAL version knows."""

from __future__ import annotations

from nnasync import hal
from nnasync.errors import ModelError
from nnasync.hal import HalVersion, Memory, Model

__all__ = ["POOLS_SINCE", "check_pools", "pool_fault"]

POOLS_SINCE = {
    "ashmem": HalVersion.V1_0,
    "mmap_fd": HalVersion.V1_0,
    "hardware_buffer_blob": HalVersion.V1_2,
    "hardware_buffer": HalVersion.V1_2,
}


def check_pools(model: Model) -> None:
    """Raise ModelError for the first pool of an unknown kind."""
    for index, pool in enumerate(model.pools):
        fault = pool_fault(pool)
        if fault:
            raise ModelError(f"pool {index} {fault}")


def pool_fault(pool: Memory, version: HalVersion = HalVersion.V1_3) -> str | None:
    """Why a HAL version does not take a pool, or None."""
    since = POOLS_SINCE.get(pool.name)
    if since is None:
        return f"is of unknown kind {pool.name!r}; known are {', '.join(POOLS_SINCE)}"
    if since > version:
        return f"is of kind {pool.name!r}, which exists since {hal.version_name(since)}"
    return None
