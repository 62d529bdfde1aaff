"""Changes to models: some keep them legal, some break one rule, some break many.

A `Mutator` takes every decision from one `random.Random`, which hypothesis, a fuzzer or a seed may
drive. What is changed is structure and numbers; the types of fields stay what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nnasync import hal
from nnasync.hal import (
    Array,
    ChannelQuant,
    DataLocation,
    ExtensionNameAndPrefix,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    StatePair,
    Subgraph,
)
from nnasync.memory import Pool
from nnasync.suites.fuzz.edits import (
    DIMENSIONS,
    FLOATS,
    MIDDLE,
    NUMBERS,
    ODD_FLOATS,
    SMALL,
    Editor,
    has_value,
    is_small,
    value_of,
)
from nnasync.suites.fuzz.samples import FuzzSample, random_array
from nnasync.suites.fuzz.small_models import COPY, INPUT, OUTPUT, TEMPORARY, counted, replace

__all__ = ["Mutator"]

TYPES = (*OperandType, -1, 16, 9999, 10002, 0x10000, 0x10001, 0x7FFF0001, 2**40)
OPERATIONS = (*OperationType, -1, 102, 9999, 0x10000, 0x10001, 0x10004, 2**40)
NAMES = ("", "x", "\N{SNOWMAN}", 'a"b\n', "org.nnasync.tflite")
_TWINS: dict[int, tuple[OperandType, ...]] = {
    OperandType.TENSOR_FLOAT32: (OperandType.TENSOR_FLOAT16,),
    OperandType.FLOAT32: (OperandType.FLOAT16,),
    OperandType.TENSOR_QUANT8_ASYMM: (OperandType.TENSOR_QUANT8_ASYMM_SIGNED,),
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: (OperandType.TENSOR_QUANT8_ASYMM,),
    OperandType.TENSOR_INT32: (OperandType.TENSOR_FLOAT32, OperandType.TENSOR_BOOL8),
    OperandType.INT32: (OperandType.FLOAT32, OperandType.BOOL),
}


class Mutator(Editor):
    """Changes models as a source of randomness says."""

    def sample(self, sample: FuzzSample, others: Sequence[FuzzSample]) -> FuzzSample:
        """A sample with up to four changes; mostly its consumers are counted anew.

        Some get changes only that leave most models legal and make a few of them large.
        """
        changes: tuple[tuple[Callable[[FuzzSample], FuzzSample], int], ...] = (
            (self.value, 10),
            (self.shape, 8),
            (self.resized, 8),
            (self.forgotten, 4),
            (self.at_run, 6),
            (self.fixed, 2),
            (self.retyped, 4),
            (self.quantization, 6),
            (self.omitted, 3),
            (self.operand, 6),
            (self.operation, 8),
            (self.lists, 2),
            (self.whole, 3),
            (self.nested, 2),
            (self.state, 2),
            (lambda one: self.joined(one, self.pick(others)), 3),
        )
        if self.random.random() < 0.2:
            changes = ((self.resized, 6), (self.value, 4), (self.forgotten, 1), (self.at_run, 1))
        functions, weights = zip(*changes, strict=True)
        for _ in range(self.random.choice((0, 1, 1, 1, 2, 2, 3, 4))):
            (change,) = self.random.choices(functions, weights)
            sample = change(sample)
        if self.random.random() < 0.95:
            model = sample.model
            sample = replace(
                sample,
                model=replace(
                    model,
                    main=counted(model.main),
                    referenced=tuple(counted(subgraph) for subgraph in model.referenced),
                ),
            )
        return sample

    def value(self, sample: FuzzSample) -> FuzzSample:
        """Another value for a constant."""
        place, graph = self.graph(sample.model)
        constants = [
            i
            for i, o in enumerate(graph.operands)
            if has_value(o) and is_small(o.type, o.dimensions)
        ]
        if not constants:
            return sample
        index = self.pick(constants)
        operand = graph.operands[index]
        array = self.array(operand.type, operand.dimensions, value_of(sample.model, operand))
        return self.with_value(sample, place, index, array)

    def shape(self, sample: FuzzSample) -> FuzzSample:
        """Other dimensions of one operand; a constant gets a value of that size, mostly."""
        place, graph = self.graph(sample.model)
        if not graph.operands:
            return sample
        index = self.random.randrange(len(graph.operands))
        operand = graph.operands[index]
        shape = self.dimensions(operand.dimensions)
        changed = self.with_operand(sample, place, index, dimensions=shape)
        if has_value(operand) and is_small(operand.type, shape) and self.random.random() < 0.9:
            return self.with_value(changed, place, index, self.array(operand.type, shape))
        return changed

    def resized(self, sample: FuzzSample) -> FuzzSample:
        """One length becomes another wherever it occurs: often still legal."""
        place, graph = self.graph(sample.model)
        lengths = sorted({n for operand in graph.operands for n in operand.dimensions})
        if not lengths:
            return sample
        old = self.pick(lengths)
        new = self.pick(self.pick((SMALL, SMALL, MIDDLE, DIMENSIONS)))
        for index, operand in enumerate(graph.operands):
            if old not in operand.dimensions:
                continue
            shape = tuple(new if n == old else n for n in operand.dimensions)
            sample = self.with_operand(sample, place, index, dimensions=shape)
            if isinstance(operand.extra_params, ChannelQuant) and 0 < new < 1000:
                extra = ChannelQuant((0.5,) * new, operand.extra_params.channel_dim)
                sample = self.with_operand(sample, place, index, extra_params=extra)
            if has_value(operand) and is_small(operand.type, shape):
                value = random_array(self.random, operand.type, shape)
                sample = self.with_value(sample, place, index, value)
        return sample

    def forgotten(self, sample: FuzzSample) -> FuzzSample:
        """Shapes of operands without a value are left open: one dimension, all, or the rank."""
        place, graph = self.graph(sample.model)
        all_of_them, rank = self.random.random() < 0.5, self.random.random() < 0.5
        for index, operand in enumerate(graph.operands):
            if hal.is_constant(operand) or not operand.dimensions:
                continue
            if not all_of_them and self.random.random() < 0.5:
                continue
            open_shape = tuple(0 if self.random.random() < 0.7 else n for n in operand.dimensions)
            shape = () if rank else open_shape
            sample = self.with_operand(sample, place, index, dimensions=shape)
        return sample

    def at_run(self, sample: FuzzSample) -> FuzzSample:
        """Constants of the main subgraph become inputs: one, some, or all."""
        main = sample.model.main
        constants = [i for i, o in enumerate(main.operands) if has_value(o)]
        share = self.pick((0.2, 0.5, 1.0))
        for index in constants:
            operand = main.operands[index]
            if self.random.random() < share and operand.type != OperandType.SUBGRAPH:
                value = value_of(sample.model, operand)
                if value is not None:
                    sample = replace(sample, feeds={**sample.feeds, index: value})
                sample = self.with_operand(
                    sample, -1, index, lifetime=INPUT, location=DataLocation()
                )
                sample = self.with_main(
                    sample, input_indexes=(*sample.model.main.input_indexes, index)
                )
        return sample

    def fixed(self, sample: FuzzSample) -> FuzzSample:
        """An input of the main subgraph becomes a constant."""
        main = sample.model.main
        inputs = [i for i in main.input_indexes if 0 <= i < len(main.operands)]
        if not inputs:
            return sample
        index = self.pick(inputs)
        operand = main.operands[index]
        shape = tuple(n or 2 for n in operand.dimensions)
        if not hal.has_dtype(operand.type) or not is_small(operand.type, shape):
            return sample
        array = sample.feeds.get(index)
        dtype = hal.dtype_of(operand.type)
        if array is None or array.dtype != dtype or array.shape != shape:
            array = self.array(operand.type, shape)
        sample = self.with_operand(sample, -1, index, lifetime=COPY, dimensions=shape)
        kept = tuple(i for i in main.input_indexes if i != index)
        sample = self.with_main(sample, input_indexes=kept)
        return self.with_value(sample, -1, index, array)

    def retyped(self, sample: FuzzSample) -> FuzzSample:
        """Gives all operands of a type another one, often its twin."""
        place, graph = self.graph(sample.model)
        types = sorted({operand.type for operand in graph.operands})
        if not types:
            return sample
        old = self.pick(types)
        twins: Sequence[int] = _TWINS.get(old, ())
        new = self.pick(twins) if twins and self.random.random() < 0.7 else self.pick(TYPES)
        for index, operand in enumerate(graph.operands):
            if operand.type != old:
                continue
            sample = self.with_operand(sample, place, index, type=new, **_quantized(operand, new))
            if has_value(operand) and is_small(new, operand.dimensions):
                value = random_array(self.random, new, operand.dimensions)
                sample = self.with_value(sample, place, index, value)
        return sample

    def quantization(self, sample: FuzzSample) -> FuzzSample:
        """Scale, zero point or scales per channel of one operand."""
        place, graph = self.graph(sample.model)
        quantized = [i for i, o in enumerate(graph.operands) if o.scale or o.extra_params]
        if not quantized:
            return sample
        index = self.pick(quantized)
        operand = graph.operands[index]
        extra = operand.extra_params
        span = hal.zero_points(operand.type) or (0, 0)
        kind = self.random.randrange(4)
        if kind == 0:
            return self.with_operand(sample, place, index, zero_point=self.random.randint(*span))
        if isinstance(extra, ChannelQuant) and kind == 1:
            scales = tuple(self.pick(FLOATS) for _ in extra.scales)
            return self.with_operand(
                sample, place, index, extra_params=replace(extra, scales=scales)
            )
        scales = FLOATS if self.random.random() < 0.5 else (0.001, 0.25, 0.5, 1.0, 2.0, 1000.0)
        return self.with_operand(sample, place, index, scale=self.pick(scales))

    def omitted(self, sample: FuzzSample) -> FuzzSample:
        """A constant or an input of the main subgraph is omitted."""
        main = sample.model.main
        candidates = [
            i for i, o in enumerate(main.operands) if hal.is_constant(o) or o.lifetime == INPUT
        ]
        if not candidates:
            return sample
        index = self.pick(candidates)
        sample = self.with_operand(
            sample, -1, index, lifetime=OperandLifeTime.NO_VALUE, location=DataLocation()
        )
        kept = tuple(i for i in main.input_indexes if i != index)
        return self.with_main(sample, input_indexes=kept)

    def operand(self, sample: FuzzSample) -> FuzzSample:
        """One field of one operand."""
        place, graph = self.graph(sample.model)
        if not graph.operands:
            return sample
        index = self.random.randrange(len(graph.operands))
        operand = graph.operands[index]
        pick = self.pick
        size = hal.byte_size(operand.type, operand.dimensions) if hal.has_dtype(operand.type) else 4
        where = [pick((0, 1, *NUMBERS)), pick((0, 4, 8, *NUMBERS)), pick((size, size, *NUMBERS))]
        fields: dict[str, Callable[[], Any]] = {
            "type": lambda: pick(TYPES),
            "number_of_consumers": lambda: pick(NUMBERS),
            "scale": lambda: pick(ODD_FLOATS),
            "zero_point": lambda: pick(NUMBERS),
            "lifetime": lambda: pick(tuple(OperandLifeTime)),
            "location": lambda: DataLocation(*where),
            "extra_params": lambda: self._extra(operand.dimensions),
            "name": lambda: pick(NAMES),
        }
        field = pick(tuple(fields))
        return self.with_operand(sample, place, index, **{field: fields[field]()})

    def _extra(self, dimensions: Sequence[int]) -> ChannelQuant | bytes | None:
        pick = self.pick
        count = pick((0, 1, *(n for n in dimensions if 0 <= n < 100)))
        quant = ChannelQuant(tuple(pick(ODD_FLOATS) for _ in range(count)), pick(NUMBERS))
        axis = self.random.randrange(len(dimensions)) if dimensions else 0
        return pick((None, b"", b"x" * 9, quant, ChannelQuant((0.5,) * count, axis)))

    def operation(self, sample: FuzzSample) -> FuzzSample:
        """Type, inputs, outputs or place of one operation; one more, or one less."""
        place, graph = self.graph(sample.model)
        if not graph.operations:
            return sample
        operations = list(graph.operations)
        index = self.random.randrange(len(operations))
        operation = operations[index]
        kind = self.random.randrange(8)
        if kind == 0:
            operations[index] = replace(operation, type=self.pick(OPERATIONS))
        elif kind == 1:
            return self._twice(sample, place, operation)
        elif kind == 2:
            operations = list(self.listed(operations, (operation,)))
        else:
            field = "outputs" if kind == 3 else "inputs"
            count = len(graph.operands)
            indexes = self.listed(getattr(operation, field), (*range(count), -1, count))
            operations[index] = replace(operation, **{field: indexes})
        return self.with_graph(sample, place, replace(graph, operations=tuple(operations)))

    def _twice(self, sample: FuzzSample, place: int, operation: Operation) -> FuzzSample:
        """The operation again, at the end, with results of its own."""
        graph = self.at(sample.model, place)
        operands = list(graph.operands)
        outputs = []
        for index in operation.outputs:
            if 0 <= index < len(graph.operands):
                outputs.append(len(operands))
                operands.append(replace(graph.operands[index], lifetime=TEMPORARY))
        again = replace(operation, outputs=tuple(outputs))
        graph = replace(graph, operands=tuple(operands), operations=(*graph.operations, again))
        return self.with_graph(sample, place, graph)

    def lists(self, sample: FuzzSample) -> FuzzSample:
        """Inputs or outputs of a subgraph; what is taken out may become a temporary."""
        place, graph = self.graph(sample.model)
        field = self.pick(("input_indexes", "output_indexes"))
        old = getattr(graph, field)
        new = self.listed(
            old, (*range(len(graph.operands)), self.pick(NUMBERS), self.pick(NUMBERS))
        )
        sample = self.with_graph(sample, place, replace(graph, **{field: new}))
        wanted = INPUT if field == "input_indexes" else OUTPUT
        if self.random.random() < 0.7:
            for index in {*old, *new}:
                if 0 <= index < len(graph.operands):
                    lifetime = wanted if index in new else TEMPORARY
                    sample = self.with_operand(sample, place, index, lifetime=lifetime)
        return sample

    def whole(self, sample: FuzzSample) -> FuzzSample:
        """Changes a model outside its main subgraph."""
        model, pick = sample.model, self.pick
        entries = (
            ExtensionNameAndPrefix(pick(NAMES), pick(NUMBERS)),
            ExtensionNameAndPrefix("org.nnasync.tflite", pick((1, 2))),
        )
        values = bytes(model.operand_values)
        relaxed = not model.relax_computation_float32_to_float16
        changes: tuple[Callable[[], dict[str, Any]], ...] = (
            lambda: {"referenced": self.listed(model.referenced, (model.main,))},
            lambda: {"operand_values": values[: self.random.randint(0, len(values))]},
            lambda: {"operand_values": self._bent(values)},
            lambda: {"pools": self.listed(model.pools, (Pool.allocate(16),))},
            lambda: {"relax_computation_float32_to_float16": relaxed},
            lambda: {
                "extension_name_to_prefix": self.listed(model.extension_name_to_prefix, entries)
            },
            lambda: {"name": pick(NAMES)},
        )
        return replace(sample, model=replace(model, **pick(changes)()))

    def _bent(self, data: bytes) -> bytes:
        bent = bytearray(data)
        for _ in range(self.random.randint(1, 4)):
            if bent:
                bent[self.random.randrange(len(bent))] = self.random.getrandbits(8)
        return bytes(bent)

    def state(self, sample: FuzzSample) -> FuzzSample:
        """The states that a stream carries."""
        main = sample.model.main
        inputs, outputs = len(main.input_indexes), len(main.output_indexes)
        pairs = [StatePair(self.pick(NUMBERS), self.pick(NUMBERS))]
        pairs += [StatePair(i, o) for i in range(min(inputs, 4)) for o in range(min(outputs, 4))]
        return replace(
            sample, model=replace(sample.model, state=self.listed(sample.model.state, pairs))
        )

    def nested(self, sample: FuzzSample) -> FuzzSample:
        """The main subgraph becomes a branch, of a branch of a branch; or what a loop repeats."""
        main = sample.model.main
        loops = self.random.random() < 0.3
        for _ in range(self.pick((1, 1, 1, 2, 3, 30, 400))):
            sample = self._looped(sample) if loops else self._branched(sample)
            if len(sample.model.main.operands) > 200:
                break
        feeds = _moved(sample.feeds, main, sample.model.main)
        return FuzzSample(replace(sample.model, state=()), feeds)

    def _branched(self, sample: FuzzSample) -> FuzzSample:
        """IF over the main subgraph, and the same or another."""
        model = sample.model
        inputs, outputs = _interface(model.main)
        last = len(model.referenced)
        other = last if self.random.random() < 0.8 else self.random.randrange(last + 1)
        condition = Operand(type=OperandType.TENSOR_BOOL8, dimensions=(1,), lifetime=INPUT)
        operands = (condition, _reference(last), _reference(other), *inputs, *outputs)
        first = tuple(range(3, 3 + len(inputs)))
        results = tuple(range(3 + len(inputs), len(operands)))
        operation = Operation(OperationType.IF, (0, 1, 2, *first), results)
        main = Subgraph(operands, (operation,), (0, *first), results)
        return replace(
            sample, model=replace(model, main=main, referenced=(*model.referenced, model.main))
        )

    def _looped(self, sample: FuzzSample) -> FuzzSample:
        """WHILE over the main subgraph, never or for ever."""
        model = sample.model
        inputs, outputs = _interface(model.main)
        last = len(model.referenced)
        operands = (_reference(last), _reference(last + 1), *inputs, *outputs)
        first = tuple(range(2, 2 + len(inputs)))
        results = tuple(range(2 + len(inputs), len(operands)))
        operation = Operation(OperationType.WHILE, (0, 1, *first), results)
        main = Subgraph(operands, (operation,), first, results)
        truth = Operand(type=OperandType.TENSOR_BOOL8, dimensions=(1,))
        constant = replace(
            truth, lifetime=COPY, location=DataLocation(0, len(model.operand_values), 1)
        )
        condition = Subgraph(
            (*inputs, constant, replace(truth, lifetime=OUTPUT)),
            (Operation(OperationType.LOGICAL_NOT, (len(inputs),), (len(inputs) + 1,)),),
            tuple(range(len(inputs))),
            (len(inputs) + 1,),
        )
        values = bytes(model.operand_values) + self.pick((b"\0", b"\1"))
        referenced = (*model.referenced, condition, model.main)
        return replace(
            sample, model=replace(model, main=main, referenced=referenced, operand_values=values)
        )

    def joined(self, sample: FuzzSample, other: FuzzSample) -> FuzzSample:
        """Two models as one, without connection: later changes may connect them."""
        first, second = sample.model, other.model
        if first.pools or second.pools or second.referenced:
            return sample
        if len(first.main.operands) + len(second.main.operands) > 300:
            return sample
        base, values = len(first.main.operands), bytes(first.operand_values)
        values += bytes(-len(values) % 8)

        def moved(indexes: Sequence[int]) -> tuple[int, ...]:
            return tuple(index + base for index in indexes)

        operands = tuple(
            replace(o, location=replace(o.location, offset=o.location.offset + len(values)))
            if o.lifetime == COPY
            else o
            for o in second.main.operands
        )
        operations = tuple(
            replace(o, inputs=moved(o.inputs), outputs=moved(o.outputs))
            for o in second.main.operations
        )
        main = Subgraph(
            first.main.operands + operands,
            first.main.operations + operations,
            first.main.input_indexes + moved(second.main.input_indexes),
            first.main.output_indexes + moved(second.main.output_indexes),
        )
        entries = first.extension_name_to_prefix or second.extension_name_to_prefix
        model = replace(
            first,
            main=main,
            operand_values=values + bytes(second.operand_values),
            extension_name_to_prefix=entries,
        )
        feeds = {index + base: array for index, array in other.feeds.items()}
        return FuzzSample(model, {**sample.feeds, **feeds})


def _quantized(operand: Operand, type: int) -> dict[str, Any]:
    """Quantization for an operand that gets another type."""
    if hal.zero_points(type) is None:
        return {"scale": 0.0, "zero_point": 0, "extra_params": None}
    low, high = hal.zero_points(type) or (0, 0)
    zero_point = min(max(operand.zero_point, low), high)
    return {"scale": operand.scale or 1.0, "zero_point": zero_point, "extra_params": None}


def _interface(graph: Subgraph) -> tuple[list[Operand], list[Operand]]:
    """Operands like the inputs and outputs of a subgraph."""
    count = len(graph.operands)
    return (
        [replace(graph.operands[i], lifetime=INPUT) for i in graph.input_indexes if 0 <= i < count],
        [
            replace(graph.operands[i], lifetime=OUTPUT)
            for i in graph.output_indexes
            if 0 <= i < count
        ],
    )


def _reference(index: int) -> Operand:
    return Operand(
        type=OperandType.SUBGRAPH,
        lifetime=OperandLifeTime.SUBGRAPH,
        location=DataLocation(offset=index),
    )


def _moved(feeds: dict[int, Array], inner: Subgraph, outer: Subgraph) -> dict[int, Array]:
    """Feeds of a subgraph's inputs for those of one around it, which come last."""
    found = {}
    for index, new in zip(
        reversed(inner.input_indexes), reversed(outer.input_indexes), strict=False
    ):
        if index in feeds:
            found[new] = feeds[index]
    return found
