"""Requests fit the model, or the message names the argument that does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync._core.model import ModelBuilder
from nnasync._core.validation import validate_request
from nnasync.errors import InvalidArgument
from nnasync.hal import DataLocation, HalVersion, Model, OperandType, Request, RequestArgument
from nnasync.memory import Pool
from tests.validation.models import EXAMPLE, FLOAT, replace


def request(pool: Pool | int, *arguments: RequestArgument) -> Request:
    return Request(arguments[:2], arguments[2:], (pool,))


def at(offset: int, length: int = 24, dimensions: tuple[int, ...] = ()) -> RequestArgument:
    return RequestArgument(location=DataLocation(0, offset, length), dimensions=dimensions)


GOOD = (at(0), at(24), at(48), at(72))


def test_legal_requests() -> None:
    with Pool.allocate(96) as pool:
        validate_request(EXAMPLE, request(pool, *GOOD))
        validate_request(EXAMPLE, request(7, *(at(0, 0),) * 4))
        validate_request(EXAMPLE, request(pool, at(0, 24, (2, 3)), *GOOD[1:]))
        validate_request(EXAMPLE, request(pool, RequestArgument(has_no_value=True), *GOOD[1:]))
        validate_request(EXAMPLE, request(pool, *GOOD[:3], at(48)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (GOOD[:3], "1 outputs, the model has 2"),
        ((at(80), *GOOD[1:]), 'input 0 "x": is 24 bytes at 80'),
        ((at(-1), *GOOD[1:]), "at -1"),
        ((at(0, -1), *GOOD[1:]), "is -1 bytes"),
        ((at(2**40, 2**40), *GOOD[1:]), "which has 96 bytes"),
        ((at(0, 24, (3, 2)), *GOOD[1:]), r"\[3, 2\], the model asks for \[2, 3\]"),
        ((at(0, 24, (2, 3, 1)), *GOOD[1:]), r"\[2, 3, 1\], the model asks for \[2, 3\]"),
        ((at(0, 24, (2, 0)), *GOOD[1:]), r"\[2, 0\], the model asks for \[2, 3\]"),
        ((at(0, 0, (2, 0)), *GOOD[1:]), r"\[2, 0\], the model asks for \[2, 3\]"),
        ((at(0, 24, (2, -3)), *GOOD[1:]), r"\[2, -3\]"),
        ((at(0, 24, (2, 2**32)), *GOOD[1:]), "must be in"),
        ((*GOOD[:2], at(0, 24, (2, 4)), GOOD[3]), 'output 0 "y"'),
        ((*GOOD[:2], at(0, 24, (0, 3)), GOOD[3]), r'output 0 "y": has dimensions \[0, 3\]'),
        ((at(0, 20), *GOOD[1:]), 'input 0 "x": has 20 bytes, but takes 24'),
        ((at(80, 0), *GOOD[1:]), 'input 0 "x": has 16 bytes, but takes 24'),
        (
            (RequestArgument(location=DataLocation(1, 0, 24)), *GOOD[1:]),
            "pool 1, but the request has 1",
        ),
        (
            (RequestArgument(has_no_value=True, dimensions=(1,)), *GOOD[1:]),
            "neither location nor dimensions",
        ),
        (
            (RequestArgument(has_no_value=True, location=DataLocation(0, 0, 4)), *GOOD[1:]),
            "neither location nor dimensions",
        ),
    ],
)
def test_illegal_arguments(arguments: tuple[RequestArgument, ...], message: str) -> None:
    with Pool.allocate(96) as pool, pytest.raises(InvalidArgument, match=message):
        validate_request(EXAMPLE, request(pool, *arguments))


def test_each_argument_is_needed() -> None:
    """The official suite's ValidateRequest: each input and each output removed."""
    with Pool.allocate(96) as pool:
        whole = request(pool, *GOOD)
        for field in ("inputs", "outputs"):
            arguments = getattr(whole, field)
            for index in range(len(arguments)):
                fewer = arguments[:index] + arguments[index + 1 :]
                with pytest.raises(InvalidArgument, match=f"1 {field}, the model has 2"):
                    validate_request(EXAMPLE, replace(whole, **{field: fewer}))


def test_tokens() -> None:
    with pytest.raises(InvalidArgument, match="driver-managed buffer is used whole"):
        validate_request(EXAMPLE, request(7, *GOOD))
    for token in (0, -1):
        with pytest.raises(InvalidArgument, match=f"token {token}; tokens are above 0"):
            validate_request(EXAMPLE, request(token, *(at(0, 0),) * 4))


def model(*shape: int) -> Model:
    m = ModelBuilder()
    m.output("y", m.relu(m.input("x", shape)))
    return m.build()


WHOLE = RequestArgument()


def test_unknown_dimensions_are_given_by_the_request() -> None:
    known = RequestArgument(dimensions=(2, 3))
    with Pool.allocate(96) as pool:
        validate_request(model(0, 3), Request((known,), (WHOLE,), (pool,)))
        validate_request(
            model(0, 3), Request((known,), (known,), (pool,)), unspecified_outputs=False
        )
        with pytest.raises(InvalidArgument, match="input 0"):
            validate_request(model(0, 3), Request((WHOLE,), (WHOLE,), (pool,)))
        for output in (WHOLE, at(0, 24, (0, 3))):
            validate_request(model(0, 3), Request((known,), (output,), (pool,)))
            with pytest.raises(InvalidArgument, match="output 0"):
                validate_request(
                    model(0, 3), Request((known,), (output,), (pool,)), unspecified_outputs=False
                )


@pytest.mark.parametrize(
    ("shape", "given", "legal"),
    [
        ((0, 3), (0, 3), True),
        ((0, 0), (2, 0), True),
        ((0, 0), (0, 0), True),
        ((0, 3), (0, 4), False),
        ((0, 3), (2, 0), False),
        ((2, 3), (0, 3), False),
        ((0, 3), (0,), False),
        ((0, 3), (0, -3), False),
    ],
)
def test_empty_inputs(shape: tuple[int, ...], given: tuple[int, ...], legal: bool) -> None:
    with Pool.allocate(96) as pool:
        asked = Request((at(0, 0, given),), (WHOLE,), (pool,))
        if legal:
            validate_request(model(*shape), asked)
            with pytest.raises(InvalidArgument, match="they must be given and known"):
                validate_request(model(*shape), Request((at(0, 4, given),), (WHOLE,), (pool,)))
        else:
            with pytest.raises(InvalidArgument, match="the model asks for|must be in"):
                validate_request(model(*shape), asked)


def test_scalars_have_no_dimensions() -> None:
    m = ModelBuilder()
    x = m.input("x", (2,))
    alpha = m.input("alpha", (), type=OperandType.FLOAT32)
    m.output("y", m.add(x, x))
    built = m.build()
    assert built.main.operands[alpha.index].type != FLOAT
    with Pool.allocate(96) as pool:
        good = Request((at(0, 8), at(8, 4)), (at(16, 8),), (pool,))
        validate_request(built, good)
        for wrong in ((1,), (0,)):
            bad = replace(good, inputs=(at(0, 8), at(8, 4 * wrong[0], wrong)))
            with pytest.raises(InvalidArgument, match='input 1 "alpha": is a scalar'):
                validate_request(built, bad)


class Foreign:
    """A pool of a kind of our choice."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.size = 96
        self.view = memoryview(bytes(96))


@pytest.mark.parametrize(
    ("name", "since"),
    [
        ("ashmem", HalVersion.V1_0),
        ("mmap_fd", HalVersion.V1_0),
        ("hardware_buffer_blob", HalVersion.V1_2),
        ("hardware_buffer", HalVersion.V1_2),
    ],
)
def test_kinds_of_pools(name: str, since: HalVersion) -> None:
    inputs, outputs = GOOD[:2], GOOD[2:]
    if name == "hardware_buffer":  # An image is used whole.
        inputs = outputs = (replace(GOOD[0], location=at(0, 0).location),) * 2
    asked = Request(inputs, outputs, (Foreign(name),))
    for version in HalVersion:
        if version >= since:
            validate_request(EXAMPLE, asked, version=version)
        else:
            with pytest.raises(InvalidArgument, match=f"pool 0 is of kind '{name}'"):
                validate_request(EXAMPLE, asked, version=version)
    with pytest.raises(InvalidArgument, match="pool 0 is of unknown kind 'disk'"):
        validate_request(EXAMPLE, replace(asked, pools=(Foreign("disk"),)))


def test_older_versions_need_known_outputs_and_have_no_tokens() -> None:
    known = RequestArgument(dimensions=(2, 3))
    with Pool.allocate(96) as pool:
        asked = Request((known,), (WHOLE,), (pool,))
        validate_request(model(0, 3), asked, version=HalVersion.V1_2)
        with pytest.raises(InvalidArgument, match="output 0"):
            validate_request(model(0, 3), asked, version=HalVersion.V1_1)
    with pytest.raises(InvalidArgument, match="pool 0 is a token; those exist since HAL 1.3"):
        validate_request(EXAMPLE, request(7, *(at(0, 0),) * 4), version=HalVersion.V1_2)


numbers = st.sampled_from([-(2**63), -1, 0, 1, 2, 3, 4, 8, 24, 48, 96, 97, 2**32 - 1, 2**32, 2**64])
arguments = st.builds(
    RequestArgument,
    st.booleans(),
    st.builds(DataLocation, st.sampled_from([-1, 0, 0, 0, 1]), numbers, numbers),
    st.lists(numbers, max_size=4).map(tuple),
)


@given(st.lists(arguments, max_size=3), st.lists(arguments, max_size=3), st.integers(-1, 1))
def test_whatever_a_request_says(
    inputs: list[RequestArgument], outputs: list[RequestArgument], token: int
) -> None:
    """It is legal, and then lies within its pool, or it is refused with InvalidArgument."""
    memory = Foreign("ashmem")
    asked = Request(tuple(inputs), tuple(outputs), (memory if token == 0 else token,))
    for shape in ((2, 3), (0, 3), ()):
        try:
            validate_request(model(*shape), asked)
        except InvalidArgument:
            continue
        (location,) = (argument.location for argument in inputs)
        assert token == 1 or 0 <= location.offset <= location.offset + location.length <= 96
