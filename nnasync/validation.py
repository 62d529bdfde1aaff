"""Whether a model or a request is legal; a pure check, whose message names what is wrong and where.

A model is checked in the order in which later checks rely on earlier ones: operands (type, shape,
quantisation, place of the value), operations (indices), the lists of inputs and outputs, the graph
(execution order, written once, number of consumers), references between subgraphs, states, and at
last every operation against its signatures and its shape rule in `kernels.OPERATIONS`. An operation
that has no entry there is checked as far as its operands. What depends on values of a run (an index
out of range, a buffer that is too small) is found by whoever runs it.

All of this raises ModelError, or InvalidArgument for a request, and nothing else, whatever numbers
a file or a peer put into the structs. The types of the fields are taken as given.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from nnasync import hal
from nnasync.errors import InvalidArgument, ModelError
from nnasync.hal import (
    Array,
    ChannelQuant,
    DataLocation,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    Request,
    RequestArgument,
    Shape,
    Subgraph,
)
from nnasync.kernels import OPERATIONS
from nnasync.kernels.operation import Tensor

__all__ = [
    "combine_dimensions",
    "operand_tensor",
    "operand_value",
    "subgraph_tensors",
    "validate_model",
    "validate_request",
]

_POOL_NAMES = ("ashmem", "mmap_fd", "hardware_buffer_blob", "hardware_buffer")
_MAX_DIMENSION = 2**32 - 1
_LAST_OPERATION = max(type for type in OperationType if type != OperationType.OEM_OPERATION)
_NOWHERE = DataLocation()
_QUANTIZED = {
    OperandType.TENSOR_QUANT8_ASYMM: (0, 255),
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: (-128, 127),
    OperandType.TENSOR_QUANT16_ASYMM: (0, 65535),
    OperandType.TENSOR_QUANT8_SYMM: (0, 0),
    OperandType.TENSOR_QUANT16_SYMM: (0, 0),
}
_OEM = (OperandType.OEM, OperandType.TENSOR_OEM_BYTE)
_WRITTEN = (OperandLifeTime.TEMPORARY_VARIABLE, OperandLifeTime.SUBGRAPH_OUTPUT)


def validate_model(model: Model) -> None:
    """Raise ModelError, naming operand or operation, unless the model is legal for HAL 1.3."""
    if not model.main.operations or not model.main.operands:
        raise ModelError("the main subgraph is empty: it needs operands and operations")
    _check_extensions(model)
    _check_pools(model)
    places = [_Place(model, model.main, "")]
    for index, subgraph in enumerate(model.referenced):
        places.append(_Place(model, subgraph, f"referenced subgraph {index}, "))
    for place in places:
        _check_operands(place)
        _check_indices(place)
        _check_interface(place)
        _check_graph(place)
    _check_references(model)
    _check_states(model)
    for place in places:
        _check_signatures(place)


def validate_request(model: Model, request: Request, *, unspecified_outputs: bool = True) -> None:
    """Raise InvalidArgument unless the request fits the model's inputs and outputs.

    With `unspecified_outputs`, dimensions of outputs may stay unknown; a fenced execution and a
    driver-managed buffer need them. An output that is too small is left to the execution, which
    answers OutputInsufficientSize.
    """
    main = model.main
    pool_sizes = _pool_sizes(request.pools)
    for kind, arguments, indexes, dynamic in (
        ("input", request.inputs, main.input_indexes, False),
        ("output", request.outputs, main.output_indexes, unspecified_outputs),
    ):
        if len(arguments) != len(indexes):
            raise InvalidArgument(
                f"request has {len(arguments)} {kind}s, the model has {len(indexes)}"
            )
        for position, (argument, index) in enumerate(zip(arguments, indexes, strict=True)):
            operand = main.operands[index]
            fault = _argument_fault(operand, argument, pool_sizes, dynamic=dynamic)
            if fault is None and kind == "input":
                fault = _input_size_fault(operand, argument, pool_sizes)
            if fault:
                name = f' "{operand.name}"' if operand.name else ""
                where = f"{kind} {position}{name}"
                raise InvalidArgument(f"request: {where}: {fault}")


def combine_dimensions(first: Shape, second: Shape) -> Shape | None:
    """The dimensions that satisfy both, where 0 and an empty shape are unknown; None if none do."""
    if not first or not second:
        return first or second
    if len(first) != len(second):
        return None
    if any(a != b and a and b for a, b in zip(first, second, strict=True)):
        return None
    return tuple(a or b for a, b in zip(first, second, strict=True))


def operand_value(model: Model, operand: Operand) -> Array | None:
    """A read-only view of a constant operand's value; None where the operand is no constant."""
    if not hal.is_constant(operand) or not hal.has_dtype(operand.type):
        return None
    location = operand.location
    if operand.lifetime == OperandLifeTime.CONSTANT_COPY:
        source = memoryview(model.operand_values)
    else:
        source = model.pools[location.pool_index].view
    data = source[location.offset : location.offset + location.length].toreadonly()
    return np.frombuffer(data, hal.dtype_of(operand.type)).reshape(operand.dimensions)


def operand_tensor(model: Model, operand: Operand) -> Tensor | None:
    """What the kernels want to know of an operand; None where it has no value (omitted)."""
    if operand.lifetime == OperandLifeTime.NO_VALUE:
        return None
    quant = operand.extra_params if isinstance(operand.extra_params, ChannelQuant) else None
    return Tensor(
        type=operand.type,
        shape=operand.dimensions,
        scale=operand.scale,
        zero_point=operand.zero_point,
        channel_quant=quant,
        value=operand_value(model, operand),
    )


def subgraph_tensors(model: Model, subgraph: Subgraph) -> list[Tensor | None]:
    """What the kernels want to know of each operand of a subgraph."""
    return [operand_tensor(model, operand) for operand in subgraph.operands]


class _Place:
    """One subgraph of a model, and how messages name its parts."""

    __slots__ = ("model", "prefix", "subgraph")

    def __init__(self, model: Model, subgraph: Subgraph, prefix: str) -> None:
        self.model = model
        self.subgraph = subgraph
        self.prefix = prefix

    def operand(self, index: int) -> str:
        name = self.subgraph.operands[index].name
        return f'{self.prefix}operand {index} "{name}"' if name else f"{self.prefix}operand {index}"

    def operation(self, index: int) -> str:
        name = hal.operation_name(self.subgraph.operations[index].type)
        return f"{self.prefix}operation {index} ({name})"


def _check_extensions(model: Model) -> None:
    entries = model.extension_name_to_prefix
    if len({e.name for e in entries}) < len(entries) or len({e.prefix for e in entries}) < len(
        entries
    ):
        raise ModelError("extension names and prefixes must map one to one")
    for entry in entries:
        if not 0 < entry.prefix < 2**15:
            raise ModelError(
                f"extension {entry.name!r} has prefix {entry.prefix}; it must be in [1, 32767]"
            )


def _has_prefix(model: Model, type: int) -> bool:
    prefix = type >> hal.EXTENSION_PREFIX_SHIFT
    return any(entry.prefix == prefix for entry in model.extension_name_to_prefix)


def _check_pools(model: Model) -> None:
    for index, pool in enumerate(model.pools):
        if pool.name not in _POOL_NAMES:
            raise ModelError(
                f"pool {index} is of kind {pool.name!r}; known are {', '.join(_POOL_NAMES)}"
            )


def _check_operands(place: _Place) -> None:
    for index, operand in enumerate(place.subgraph.operands):
        fault = (
            _type_fault(place.model, operand)
            or _dimensions_fault(operand)
            or _quantization_fault(operand)
            or _location_fault(place.model, operand)
        )
        if fault:
            raise ModelError(f"{place.operand(index)}: {fault}")


def _type_fault(model: Model, operand: Operand) -> str | None:
    type = operand.type
    if hal.is_extension(type):
        if not _has_prefix(model, type):
            return f"extension type {type:#x} has a prefix that the model does not name"
    elif type not in OperandType._value2member_map_:
        return f"unknown operand type {type}"
    if (type == OperandType.SUBGRAPH) != (operand.lifetime == OperandLifeTime.SUBGRAPH):
        return "type SUBGRAPH and lifetime SUBGRAPH belong together"
    return None


def _dimensions_fault(operand: Operand) -> str | None:
    type, dimensions = operand.type, operand.dimensions
    if any(not 0 <= n <= _MAX_DIMENSION for n in dimensions):
        return f"dimensions {list(dimensions)} must be in [0, 2^32 - 1]"
    if hal.is_extension(type):
        return None
    if hal.is_scalar(type):
        if dimensions:
            return (
                f"{hal.type_name(type)} is a scalar and has no dimensions, not {list(dimensions)}"
            )
        return None
    known = math.prod(n for n in dimensions if n) * hal.dtype_of(type).itemsize
    if known > hal.MAX_TENSOR_BYTES:
        return f"dimensions {list(dimensions)} take {known} bytes; at most 2^32 - 1 are allowed"
    sized = hal.is_fully_specified(type, dimensions) or type in _OEM
    if hal.is_constant(operand) and not sized:
        return f"a constant needs known dimensions, not {list(dimensions)}"
    return None


def _quantization_fault(operand: Operand) -> str | None:
    type, scale, zero_point = operand.type, operand.scale, operand.zero_point
    name = hal.type_name(type)
    if type in _OEM:
        return None
    lowest, highest = _QUANTIZED.get(OperandType(type), (0, 0)) if type < 0x10000 else (0, 0)
    if not lowest <= zero_point <= highest:
        return f"{name} has zero point {zero_point}; it must be in [{lowest}, {highest}]"
    if type in _QUANTIZED:
        if not 0 < scale < math.inf:
            return f"{name} has scale {scale}; it must be above 0"
    elif type == OperandType.TENSOR_INT32:
        if not 0 <= scale < math.inf:
            return f"{name} has scale {scale}; it must be 0 or above"
    elif scale != 0:
        return f"{name} has scale {scale}; it must be 0"
    return _extra_params_fault(operand)


def _extra_params_fault(operand: Operand) -> str | None:
    extra, name = operand.extra_params, hal.type_name(operand.type)
    if operand.type != OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL:
        if isinstance(extra, ChannelQuant):
            return f"{name} cannot have scales per channel"
        if extra is not None and not hal.is_extension(operand.type):
            return f"{name} cannot have extra parameters"
        return None
    if not isinstance(extra, ChannelQuant):
        return f"{name} needs scales per channel"
    if not 0 <= extra.channel_dim < len(operand.dimensions):
        return f"channel dimension {extra.channel_dim} is not one of {list(operand.dimensions)}"
    channels = operand.dimensions[extra.channel_dim]
    if channels == 0 or len(extra.scales) != channels:
        return f"{len(extra.scales)} scales for {channels} channels"
    if not all(0 < scale < math.inf for scale in extra.scales):
        return "scales per channel must be above 0"
    return None


def _location_fault(model: Model, operand: Operand) -> str | None:
    location, lifetime = operand.location, operand.lifetime
    if lifetime == OperandLifeTime.SUBGRAPH:
        if location.pool_index or location.length:
            return "a subgraph's location has only an offset, its index"
        if not 0 <= location.offset < len(model.referenced):
            return f"refers to subgraph {location.offset} of {len(model.referenced)}"
        return None
    if not hal.is_constant(operand):
        return None if location == _NOWHERE else f"{lifetime.name} has no location, not {location}"
    if lifetime == OperandLifeTime.CONSTANT_COPY:
        pool, size = "operand_values", len(model.operand_values)
        if location.pool_index != 0:
            return f"a copied constant has pool index 0, not {location.pool_index}"
    elif 0 <= location.pool_index < len(model.pools):
        pool, size = f"pool {location.pool_index}", model.pools[location.pool_index].size
    else:
        return f"its value is in pool {location.pool_index} of {len(model.pools)}"
    if location.offset < 0 or location.length < 0 or location.offset + location.length > size:
        return (
            f"its value is {location.length} bytes at {location.offset} of {pool}, "
            f"which has {size} bytes"
        )
    if hal.is_extension(operand.type) or operand.type in _OEM:
        return None
    needed = hal.byte_size(operand.type, operand.dimensions)
    if location.length != needed:
        shape = f"{hal.type_name(operand.type)} {list(operand.dimensions)}"
        return f"its value has {location.length} bytes, but {shape} takes {needed}"
    return None


def _check_indices(place: _Place) -> None:
    subgraph = place.subgraph
    count = len(subgraph.operands)
    for index, operation in enumerate(subgraph.operations):
        if not _is_operation(place.model, operation.type):
            raise ModelError(f"{place.operation(index)}: no such operation in HAL 1.3")
        for kind, operands in (("input", operation.inputs), ("output", operation.outputs)):
            for position, operand in enumerate(operands):
                if not 0 <= operand < count:
                    raise ModelError(
                        f"{place.operation(index)}: {kind} {position} is operand {operand}, but "
                        f"there are {count}"
                    )
        for position, operand in enumerate(operation.outputs):
            lifetime = subgraph.operands[operand].lifetime
            if lifetime not in _WRITTEN:
                raise ModelError(
                    f"{place.operation(index)}: output {position} is {place.operand(operand)}, a "
                    f"{lifetime.name}; only temporaries and subgraph outputs can be written"
                )


def _is_operation(model: Model, type: int) -> bool:
    if hal.is_extension(type):
        return _has_prefix(model, type)
    return 0 <= type <= _LAST_OPERATION or type == OperationType.OEM_OPERATION


def _check_interface(place: _Place) -> None:
    subgraph = place.subgraph
    for name, indexes, lifetime in (
        ("input_indexes", subgraph.input_indexes, OperandLifeTime.SUBGRAPH_INPUT),
        ("output_indexes", subgraph.output_indexes, OperandLifeTime.SUBGRAPH_OUTPUT),
    ):
        for index in indexes:
            if not 0 <= index < len(subgraph.operands):
                raise ModelError(
                    f"{place.prefix}{name} lists operand {index}, but there are "
                    f"{len(subgraph.operands)}"
                )
            if subgraph.operands[index].lifetime != lifetime:
                raise ModelError(
                    f"{place.operand(index)} is listed in {name}, so its lifetime must be "
                    f"{lifetime.name}, not {subgraph.operands[index].lifetime.name}"
                )
        listed = set(indexes)
        if len(listed) < len(indexes):
            raise ModelError(f"{place.prefix}{name} lists an operand twice: {list(indexes)}")
        for index, operand in enumerate(subgraph.operands):
            if operand.lifetime == lifetime and index not in listed:
                raise ModelError(f"{place.operand(index)} is a {lifetime.name} missing in {name}")


def _check_graph(place: _Place) -> None:
    operands = place.subgraph.operands
    known = [operand.lifetime not in _WRITTEN for operand in operands]
    consumers = [0] * len(operands)
    for index, operation in enumerate(place.subgraph.operations):
        for position, operand in enumerate(operation.inputs):
            consumers[operand] += 1
            if not known[operand]:
                raise ModelError(
                    f"{place.operation(index)}: input {position} is {place.operand(operand)}, "
                    "which no earlier operation writes"
                )
        for operand in operation.outputs:
            if known[operand]:
                raise ModelError(
                    f"{place.operation(index)} writes {place.operand(operand)}, which was written "
                    "before"
                )
            known[operand] = True
    for index, written in enumerate(known):
        if not written:
            lifetime = operands[index].lifetime.name
            raise ModelError(f"{place.operand(index)} is a {lifetime} never written")
    for index, operand_ in enumerate(operands):
        if operand_.number_of_consumers != consumers[index]:
            raise ModelError(
                f"{place.operand(index)} has number_of_consumers {operand_.number_of_consumers}, "
                f"but operations read it {consumers[index]} times"
            )


def _references(subgraph: Subgraph) -> list[int]:
    return [o.location.offset for o in subgraph.operands if o.type == OperandType.SUBGRAPH]


def _check_references(model: Model) -> None:
    """No subgraph reaches itself; iterative, since a file chooses how deep they nest."""
    targets = [_references(subgraph) for subgraph in model.referenced]
    done: set[int] = set()
    for start in range(len(targets)):
        path: dict[int, Iterator[int]] = {}
        if start not in done:
            path[start] = iter(targets[start])
        while path:
            current = next(reversed(path))
            target = next(path[current], None)
            if target is None:
                done.add(current)
                del path[current]
            elif target in path:
                raise ModelError(f"referenced subgraph {target} refers to itself")
            elif target not in done:
                path[target] = iter(targets[target])


def _check_states(model: Model) -> None:
    main = model.main
    for number, pair in enumerate(model.state):
        for kind, position, count in (
            ("input", pair.input, len(main.input_indexes)),
            ("output", pair.output, len(main.output_indexes)),
        ):
            if not 0 <= position < count:
                raise ModelError(
                    f"state {number}: {kind} {position} is not one of the model's {count} {kind}s"
                )
        before = main.operands[main.input_indexes[pair.input]]
        after = main.operands[main.output_indexes[pair.output]]
        if _meaning(before) != _meaning(after):
            raise ModelError(
                f"state {number}: input {pair.input} is {_describe(before)}, but output "
                f"{pair.output} is {_describe(after)}; they must be alike"
            )
    for kind, used in (
        ("input", [pair.input for pair in model.state]),
        ("output", [pair.output for pair in model.state]),
    ):
        if len(set(used)) < len(used):
            raise ModelError(f"two states use the same {kind}: {used}")


def _meaning(operand: Operand) -> tuple[object, ...]:
    return (
        operand.type,
        operand.dimensions,
        operand.scale,
        operand.zero_point,
        operand.extra_params,
    )


def _describe(operand: Operand) -> str:
    text = f"{hal.type_name(operand.type)} {list(operand.dimensions)}"
    if operand.scale:
        text += f" scale {operand.scale:g} zero point {operand.zero_point}"
    return text


def _check_signatures(place: _Place) -> None:
    tensors = subgraph_tensors(place.model, place.subgraph)
    for index, operation in enumerate(place.subgraph.operations):
        try:
            _check_signature(place, operation, tensors)
        except ModelError as error:
            raise ModelError(f"{place.operation(index)}: {error}") from error


def _check_signature(place: _Place, operation: Operation, tensors: Sequence[Tensor | None]) -> None:
    if operation.type not in OPERATIONS:
        return
    rule = OPERATIONS[OperationType(operation.type)]
    inputs = [tensors[operand] for operand in operation.inputs]
    outputs = [place.subgraph.operands[operand] for operand in operation.outputs]
    inferred = rule.infer(inputs, [operand.type for operand in outputs])
    for position, (operand, expected) in enumerate(zip(outputs, inferred, strict=True)):
        if expected.is_known and combine_dimensions(operand.dimensions, expected.shape) is None:
            raise ModelError(
                f"output {position}, {place.operand(operation.outputs[position])}, has shape "
                f"{list(operand.dimensions)}; the operation's rule gives {list(expected.shape)}"
            )


def _pool_sizes(pools: Sequence[hal.Memory | int]) -> list[int | None]:
    """Size of each pool of a request; None is a driver-managed buffer."""
    sizes: list[int | None] = []
    for index, pool in enumerate(pools):
        if not isinstance(pool, int):
            if pool.name not in _POOL_NAMES:
                raise InvalidArgument(f"request: pool {index} is of unknown kind {pool.name!r}")
            sizes.append(pool.size)
        elif pool > 0:
            sizes.append(None)
        else:
            raise InvalidArgument(f"request: pool {index} is token {pool}; tokens are above 0")
    return sizes


def _argument_fault(
    operand: Operand,
    argument: RequestArgument,
    pool_sizes: Sequence[int | None],
    *,
    dynamic: bool,
) -> str | None:
    location = argument.location
    offset, length = location.offset, location.length
    if argument.has_no_value:
        if location != _NOWHERE or argument.dimensions:
            return "an omitted argument has neither location nor dimensions"
        return None
    if not 0 <= location.pool_index < len(pool_sizes):
        return f"is in pool {location.pool_index}, but the request has {len(pool_sizes)}"
    size = pool_sizes[location.pool_index]
    if size is None:
        if offset or length:
            return "a driver-managed buffer is used whole: offset and length must be 0"
    elif offset < 0 or length < 0 or offset + length > size:
        return (
            f"is {length} bytes at {offset} of pool {location.pool_index}, which has {size} bytes"
        )
    return _argument_shape_fault(operand, argument.dimensions, dynamic=dynamic)


def _input_size_fault(
    operand: Operand, argument: RequestArgument, pool_sizes: Sequence[int | None]
) -> str | None:
    """Why an input is too small, or None; a length of 0 stands for the rest of the pool."""
    if argument.has_no_value or not hal.has_dtype(operand.type):
        return None
    location = argument.location
    size = pool_sizes[location.pool_index]
    if size is None:
        return None
    needed = hal.byte_size(operand.type, argument.dimensions or operand.dimensions)
    available = location.length or size - location.offset
    return None if available >= needed else f"has {available} bytes, but takes {needed}"


def _argument_shape_fault(operand: Operand, given: Shape, *, dynamic: bool) -> str | None:
    type, dimensions = operand.type, operand.dimensions
    if given and given != dimensions:
        if hal.is_scalar(type):
            return f"is a scalar and has no dimensions, not {list(given)}"
        combined = combine_dimensions(dimensions, given)
        if combined is None:
            return f"has dimensions {list(given)}, the model asks for {list(dimensions)}"
        if min(given) < 0 or max(given) > _MAX_DIMENSION:
            return f"has dimensions {list(given)}, which must be in [0, 2^32 - 1]"
        dimensions = combined if dynamic else given
    if dynamic or hal.is_fully_specified(type, dimensions) or hal.is_extension(type):
        return None
    return f"has dimensions {list(dimensions)}; they must be given and known here"
