"""Statuses of the HAL, the errors that stand for them, and what a program makes of each."""

from __future__ import annotations

from starlette.applications import Starlette

import nnasync as nn
from nnasync import asgi, errors, hal
from nnasync.asgi import Answers, HangUps, Limits
from nnasync.hal import ErrorStatus, OutputShape
from nnasync.serving import ModelSettings

KINDS = (
    nn.CallerError,
    nn.ExperimentError,
    nn.MissedDeadlineTransient,
    nn.MissedDeadlinePersistent,
    nn.ResourceExhaustedPersistent,
)


def main() -> None:
    for status, kind in errors.BY_STATUS.items():
        error = errors.from_status(status, "as an example")
        print(f"{status.name}: {kind.__name__}, {asgi.status_of(error)}")
    print([kind.__name__ for kind in KINDS if issubclass(kind, nn.Refused)])
    short = nn.OutputInsufficientSize("too small", (OutputShape((1, 8), is_sufficient=False),))
    print(short.status is ErrorStatus.OUTPUT_INSUFFICIENT_SIZE, short.output_shapes[0].dimensions)
    full = errors.because("queue_full", nn.ResourceExhaustedTransient("1024 wait already"))
    print(full.reason in errors.REASONS)
    cut = HangUps(Starlette())
    print(cut.__class__.__name__, ModelSettings(name="words").level.name)
    wishes = asgi.wishes_of({"x-request-timeout": "50ms"}, Limits())
    handler = Answers(drain_s=lambda: 0.25)
    print(wishes, handler, hal.ExecutionResult().timing)


if __name__ == "__main__":
    main()
