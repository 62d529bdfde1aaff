"""Which memory pools a HAL version knows, and what they can be used for.

Constants lie in memory of a size: any kind but images. A model may be legal and its memory of no
use all the same: a handle that is closed, that cannot be mapped, or whose file is too short by now.
Then a device does not support the operations that read it, and cannot prepare the model.
"""

from __future__ import annotations

import mmap

import msgspec

from nnasync import hal
from nnasync.errors import DeviceError, ModelError
from nnasync.hal import HalVersion, Memory, Model, Operand, OperandLifeTime
from nnasync.memory import IMAGE, mapped

POOLS_SINCE = {
    "ashmem": HalVersion.V1_0,
    "mmap_fd": HalVersion.V1_0,
    "hardware_buffer_blob": HalVersion.V1_2,
    IMAGE: HalVersion.V1_2,
}

_READ = mmap.PROT_READ


def check_pools(model: Model) -> None:
    """Raise ModelError for the first pool of an unknown kind, or one that is an image."""
    for index, pool in enumerate(model.pools):
        fault = pool_fault(pool)
        if fault:
            raise ModelError(f"pool {index} {fault}")
        if pool.name == IMAGE:
            raise ModelError(
                f"pool {index} is an image ({IMAGE}); constants lie in other kinds of memory"
            )


def pool_fault(pool: Memory, version: HalVersion = HalVersion.V1_3) -> str | None:
    """Returns why a HAL version does not take a pool, or None."""
    since = POOLS_SINCE.get(pool.name)
    if since is None:
        return f"is of unknown kind {pool.name!r}; known are {', '.join(POOLS_SINCE)}"
    if since > version:
        return f"is of kind {pool.name!r}, which exists since {hal.version_name(since)}"
    return None


def check_constants(model: Model) -> None:
    """Raise GeneralFailure for the first pool of a kind for constants that cannot be read."""
    for error in unusable_pools(model).values():
        raise error


def unusable_pools(model: Model) -> dict[int, DeviceError]:
    """The pools of kinds for constants that cannot be read, and why; they are mapped for that."""
    unusable: dict[int, DeviceError] = {}
    for index, pool in enumerate(model.pools):
        if pool.name == IMAGE or pool_fault(pool):
            continue
        try:
            mapped(pool, f"pool {index} of the model")
        except DeviceError as error:
            unusable[index] = error
    return unusable


def supportable(model: Model) -> tuple[Model, tuple[bool, ...]]:
    """A model to ask an engine about, and which of its operations have memory that can be read.

    Where all of them have, it is the model itself, else one with zeroes in place of what cannot be
    read: what an engine says of the operations that have theirs does not depend on it.
    """
    unusable = unusable_pools(model)
    operations = model.main.operations
    if not unusable:
        return model, (True,) * len(operations)
    try:
        pools = tuple(
            _Zeros(pool) if index in unusable else pool for index, pool in enumerate(model.pools)
        )
    except (OSError, OverflowError, ValueError):
        return model, (False,) * len(operations)  # It says it has more bytes than there can be.
    return msgspec.structs.replace(model, pools=pools), _have_memory(model, frozenset(unusable))


class _Zeros:
    """Memory in place of some that cannot be read; it takes none until it is looked at."""

    def __init__(self, pool: Memory) -> None:
        self.name = pool.name
        self.size = pool.size
        self.view = memoryview(mmap.mmap(-1, pool.size, flags=mmap.MAP_PRIVATE, prot=_READ))


def _have_memory(model: Model, pools: frozenset[int]) -> tuple[bool, ...]:
    """Returns for each operation whether it, with all it refers to, reads no such pool."""
    lacking: set[int] = set()
    users: dict[int, list[int]] = {}
    for number, subgraph in enumerate(model.referenced):
        for operand in subgraph.operands:
            if _reads(operand, pools):
                lacking.add(number)
            elif operand.lifetime == OperandLifeTime.SUBGRAPH:
                users.setdefault(operand.location.offset, []).append(number)
    found = list(lacking)
    while found:
        new = [each for each in users.get(found.pop(), ()) if each not in lacking]
        lacking.update(new)
        found += new

    def lacks(index: int) -> bool:
        if not 0 <= index < len(model.main.operands):
            return False
        operand = model.main.operands[index]
        if operand.lifetime == OperandLifeTime.SUBGRAPH:
            return operand.location.offset in lacking
        return _reads(operand, pools)

    return tuple(not any(map(lacks, operation.inputs)) for operation in model.main.operations)


def _reads(operand: Operand, pools: frozenset[int]) -> bool:
    is_there = operand.lifetime == OperandLifeTime.CONSTANT_REFERENCE
    return is_there and operand.location.pool_index in pools
