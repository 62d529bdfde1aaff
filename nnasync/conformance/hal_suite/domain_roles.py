"""Descriptions and roles of driver-managed buffers that are not legal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from nnasync.conformance.hal_suite.check import refused
from nnasync.conformance.hal_suite.domain_rig import Domain, TensorForm
from nnasync.errors import InvalidArgument
from nnasync.hal import BufferDesc, BufferRole, OperandType, Shape

Act = Callable[[Domain], Awaitable[None]]


def illegal_allocations(form: TensorForm) -> Iterator[tuple[str, Act]]:
    """Yields illegal allocations by their fault, with a check that each is refused."""
    role = BufferRole(0, 0)
    yield "no roles", _refuses()
    yield "no prepared model", _refuses([role], models=0)
    yield "no prepared model, but none", _refuses([role], given=[None])
    yield "prepared model of nobody", _refuses([role], given=[object()])
    for index in (1, -1, 2**31):
        yield f"model index {index}", _refuses([BufferRole(index, 0)])
    for index in (2, -1, 2**31):
        yield f"input index {index}", _refuses([BufferRole(0, index)])
    for index in (1, -1, 2**31):
        yield f"output index {index}", _refuses(outputs=[BufferRole(0, index)])
    for frequency in (10.0, 0.0, -0.5, float("nan")):
        yield f"frequency {frequency}", _refuses([BufferRole(0, 0, frequency)])
        yield f"output frequency {frequency}", _refuses(outputs=[BufferRole(0, 0, frequency)])
    yield "same input twice", _refuses([role, role])
    yield "same output twice", _refuses(outputs=[role, role])
    for shape in ((3,), (2, 4), (2, 3, 1), (-2, 3), (2**32, 3)):
        yield f"described as {list(shape)}", _refuses([role], dimensions=shape)
    other_type = (
        OperandType.TENSOR_FLOAT16
        if form.type == OperandType.TENSOR_FLOAT32
        else OperandType.TENSOR_QUANT8_ASYMM_SIGNED
    )
    others = [
        ("type", form.like(type=other_type)),
        ("dimensions", form.like(shape=(3, 3))),
    ]
    if form.scale:
        others.append(("scale", form.like(scale=2 * form.scale)))
        others.append(("zero point", form.like(zero_point=form.zero_point + 1)))
    second = BufferRole(1, 0)
    for what, other in others:
        yield f"inputs of different {what}", _refuses([role, second], other=other)
        yield f"input and output of different {what}", _refuses([role], [second], other=other)


def _refuses(
    inputs: Sequence[BufferRole] = (),
    outputs: Sequence[BufferRole] = (),
    *,
    dimensions: Shape = (),
    other: TensorForm | None = None,
    models: int = 1,
    given: Sequence[Any] | None = None,
) -> Act:
    """`other` is a second prepared model; `given` are handed in for prepared models instead."""

    async def act(domain: Domain) -> None:
        prepared: list[Any] = [domain.prepared][:models]
        if other is not None:
            case = other.sum()
            await domain.bench.check_supported(case.model)
            prepared.append(await domain.prepare(case))
        await refused(
            domain.device.allocate(
                BufferDesc(dimensions), prepared if given is None else given, inputs, outputs
            ),
            InvalidArgument,
        )

    return act
