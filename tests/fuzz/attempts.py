"""One model and its requests, all the way through the reference device.

Whatever comes in either runs or is refused with CallerError, when it is validated, prepared or
executed; a run of what is legal may also fail with GeneralFailure or MissedDeadline. Everything
else is a finding: another exception, also one that the device contains in a GeneralFailure; a
warning; too much time.
"""

from __future__ import annotations

import asyncio
import enum
import random
import time
import tracemalloc
from collections.abc import Awaitable, Sequence
from pathlib import Path

from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.engine_device import EnginePreparedModel
from nnasync._core.model import fingerprint, load_nnm, save
from nnasync._core.validation import minimum_version, validate_model
from nnasync.errors import CallerError, GeneralFailure, MissedDeadline, ModelError, NNError
from nnasync.hal import ExecutionConfig, Model, Request
from nnasync.suites.fuzz.building import built
from nnasync.suites.fuzz.mutations import Mutator
from nnasync.suites.fuzz.requests import changed_request, request_for
from nnasync.suites.fuzz.samples import FuzzSample
from tests.engine_device.rig import Rig

__all__ = ["LOOP_TIMEOUT_NS", "MEMORY_LIMIT_BYTES", "Finding", "Outcome", "Session"]

MEMORY_LIMIT_BYTES = 4 << 20
"""What one execution may take: far less than usual, so that exceeding it shows early."""
MOST_BYTES = 8 * MEMORY_LIMIT_BYTES
"""What may be allocated at a time: constants are packed as wider numbers, and Python has objects
for them; what is more than that grows with something that the limit does not bound.
"""
LOOP_TIMEOUT_NS = 10_000_000
CPU_LIMIT_S = 10.0
"""So much processor time may one attempt take; an execution may be large, refusing is fast."""


class Finding(Exception):
    """A promise that is broken; the cause is what was raised instead."""


class Outcome(enum.Enum):
    """How far a model came."""

    NOT_LEGAL = "refused by validation"
    NOT_PREPARED = "refused by the device"
    NOT_RUN = "all requests refused"
    FAILED = "failed in a run"
    RAN = "ran"


class Session:
    """A reference device with little memory, used from outside of any event loop."""

    def __init__(self, engine: ReferenceEngine | None = None) -> None:
        self._engine = engine or ReferenceEngine(memory_limit_bytes=MEMORY_LIMIT_BYTES)
        self._runner = asyncio.Runner()
        self.rig = Rig(self._engine)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self._runner.run(self.rig.device.close())
        self.rig.close()
        self._runner.close()

    def warm_up(self, samples: Sequence[FuzzSample]) -> None:
        """Have the threads and the memory that a session needs anyhow."""
        mutator = Mutator(random.Random(0))
        for sample in samples[::10]:
            self.attempt(sample, mutator)

    def attempt(self, sample: FuzzSample, mutator: Mutator) -> Outcome:
        """Validate, prepare and run a model; raises Finding.

        One attempt in ten, as the mutator decides, has its memory watched.
        """
        watched = mutator.random.random() < 0.1
        if watched:
            tracemalloc.start(1)
        started_s = time.process_time()
        try:
            outcome = self._runner.run(self._attempt(sample, mutator))
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        if peak > MOST_BYTES:
            raise Finding(f"took {peak >> 20} MiB of memory ({outcome.value})")
        took_s = time.process_time() - started_s
        if took_s > CPU_LIMIT_S:
            raise Finding(f"took {took_s:.1f} s of processor time ({outcome.value})")
        return outcome

    def attempt_built(self, mutator: Mutator) -> Outcome:
        """Build a model by calls that need not fit, and go on with it."""
        try:
            sample = built(mutator)
        except Exception as error:
            raise Finding(f"building: {type(error).__name__}: {error}") from error
        return Outcome.NOT_LEGAL if sample is None else self.attempt(sample, mutator)

    def attempt_file(self, sample: FuzzSample, mutator: Mutator, path: Path) -> Outcome:
        """Load a file in which some bytes are not what they were, and go on with what it holds."""
        save(sample.model, path)
        data = bytearray(path.read_bytes())
        for _ in range(mutator.random.randint(0, 3)):
            data[mutator.random.randrange(len(data))] = mutator.random.getrandbits(8)
        if mutator.random.random() < 0.2:
            del data[mutator.random.randrange(len(data)) :]
        path.write_bytes(data)
        try:
            model = load_nnm(path)
        except ModelError:
            return Outcome.NOT_LEGAL
        except Exception as error:
            raise Finding(f"load_nnm: {type(error).__name__}: {error}") from error
        return self.attempt(FuzzSample(model, sample.feeds), mutator)

    async def _attempt(self, sample: FuzzSample, mutator: Mutator) -> Outcome:
        model = sample.model
        try:
            validate_model(model)
        except ModelError:
            return Outcome.NOT_LEGAL
        except Exception as error:
            raise Finding(f"validate_model: {type(error).__name__}: {error}") from error
        prepared = await self._prepared(model)
        if prepared is None:
            return Outcome.NOT_PREPARED
        outcomes = set()
        for _ in range(mutator.random.randint(1, 2)):
            request = request_for(sample, mutator)
            if mutator.random.random() < 0.3:
                request = changed_request(mutator, request)
            outcomes.add(await self._execute(prepared, request, mutator))
        await prepared.close()
        best = (Outcome.RAN, Outcome.FAILED, Outcome.NOT_RUN)
        return next(outcome for outcome in best if outcome in outcomes)

    async def _prepared(self, model: Model) -> EnginePreparedModel | None:
        """The model on the device; None where that refuses it."""
        device = self.rig.device
        try:
            minimum_version(model)
            fingerprint(model)
            await device.get_supported_operations(model)
        except Exception as error:
            raise Finding(f"a legal model: {type(error).__name__}: {error}") from error
        try:
            prepared = await device.prepare_model(model)
        except CallerError:
            return None
        except Exception as error:
            raise Finding(f"prepare_model: {_told(error)}") from error
        assert isinstance(prepared, EnginePreparedModel)
        return prepared

    async def _execute(
        self, prepared: EnginePreparedModel, request: Request, mutator: Mutator
    ) -> Outcome:
        run: Awaitable[object]
        if mutator.random.random() < 0.9:
            run = prepared.execute_synchronously(
                request, ExecutionConfig(loop_timeout_ns=LOOP_TIMEOUT_NS)
            )
        else:
            run = _launched(prepared, request)
        try:
            await run
        except CallerError:
            return Outcome.NOT_RUN
        except MissedDeadline:
            return Outcome.FAILED
        except Exception as error:
            if not isinstance(error, GeneralFailure) or not _is_typed(error.__cause__):
                raise Finding(f"an execution: {_told(error)}") from error
            return Outcome.FAILED
        return Outcome.RAN


async def _launched(prepared: EnginePreparedModel, request: Request) -> None:
    launched = await prepared.execute_fenced(
        request, config=ExecutionConfig(loop_timeout_ns=LOOP_TIMEOUT_NS)
    )
    await launched.fence


def _is_typed(error: BaseException | None) -> bool:
    return error is None or (isinstance(error, NNError) and _is_typed(error.__cause__))


def _told(error: BaseException) -> str:
    while isinstance(error, NNError) and error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"
