"""One input of a fuzzer: what kind it is of, which seed it begins with, and the choices after that.

A `Recipe` is all that there is to know of an input, as data: `made` makes the same input of it each
time, on every machine with the same version. All decisions are made before the device sees the
input, so that an input that ends the process can be made again.
"""

from __future__ import annotations

import enum
import hashlib
import random
from collections.abc import Sequence

import msgspec

from nnasync.hal import Model, Request
from nnasync.suites.fuzz.bytes_edits import ByteEdit, byte_edits, edited
from nnasync.suites.fuzz.decisions import RecordedRandom, ReplayedRandom
from nnasync.suites.fuzz.memory_inputs import MemoryAct, memory_acts
from nnasync.suites.fuzz.mutations import Mutator
from nnasync.suites.fuzz.nnm_fields import changed_description
from nnasync.suites.fuzz.onnx_fields import changed_fields
from nnasync.suites.fuzz.requests import changed_request, request_for
from nnasync.suites.fuzz.samples import FuzzSample
from nnasync.suites.fuzz.seeds import FuzzSeeds


class FuzzKind(enum.Enum):
    """What is changed."""

    MODELS = "models"
    REQUESTS = "requests"
    MEMORY = "memory"
    CACHE = "cache"
    TFLITE = "tflite"
    ONNX = "onnx"
    NNM = "nnm"

    @property
    def suffix(self) -> str:
        """The suffix of the files of the kind; empty where it is none of files."""
        return f".{self.value}" if self in _FILES else ""

    @property
    def parts(self) -> int:
        """Returns how many inputs of the kind have a number, as far as its model is prepared."""
        return PARTS if self is FuzzKind.MODELS or self in _FILES else 1


PARTS = 8
"""So many requests are inputs of one changed model, where it is prepared: the first one fits."""
ROUND = 200
"""So many inputs that leave the model as it is have the same one in a row, prepared once."""
_OF_ONE_MODEL = (FuzzKind.REQUESTS, FuzzKind.MEMORY)
_FILES = (FuzzKind.TFLITE, FuzzKind.ONNX, FuzzKind.NNM)
_BY_FIELD = {FuzzKind.ONNX: changed_fields, FuzzKind.NNM: changed_description}


class Entry(enum.Enum):
    """How an execution enters the device."""

    SYNC = "sync"
    QUEUED = "queued"
    FENCED = "fenced"


_ENTRIES = (Entry.SYNC, Entry.SYNC, Entry.SYNC, Entry.QUEUED, Entry.FENCED)


class Recipe(msgspec.Struct, frozen=True):
    """An input as data: its kind, the name of its seed, and the decisions of its changes.

    `content` is a whole changed file, where the seed is one that only its owner has. A `part` above
    0 is another request for the model, of decisions behind those of the model and its first one.
    """

    kind: FuzzKind
    seed: str
    decisions: tuple[int, ...] = ()
    content: bytes | None = None
    part: int = 0


class FuzzInput(msgspec.Struct, frozen=True):
    """What a device is given: a model, or a file of one, and what is done with it.

    `feeds_seed` chooses the values for the inputs of a model that a file holds. `is_fitting` is
    whether the request is one that fits, as far as shapes are known, `is_followed` whether another
    request for the same model comes next.
    """

    kind: FuzzKind
    sample: FuzzSample | None = None
    request: Request | None = None
    is_fitting: bool = True
    entry: Entry = Entry.SYNC
    file: bytes = b""
    feeds_seed: int = 0
    edits: tuple[ByteEdit, ...] = ()
    acts: tuple[MemoryAct, ...] = ()
    part: int = 0
    is_followed: bool = False

    @property
    def subject(self) -> Model | bytes:
        """Returns what several inputs may have in common: the model, or the file of one."""
        return self.file if self.sample is None else self.sample.model

    @property
    def leaves_model(self) -> bool:
        """Returns whether a prepared model may serve the next input, too."""
        return self.is_followed or self.kind in _OF_ONE_MODEL

    @property
    def digest(self) -> str:
        """Returns what tells this input from others."""
        said = hashlib.sha256(self.file)
        if self.sample is not None:
            said.update(_model_bytes(self.sample.model))
        if self.request is not None:
            request = self.request
            said.update(repr((request.inputs, request.outputs)).encode())
            for pool in request.pools:
                said.update(pool.view if hasattr(pool, "view") else repr(pool).encode())
        said.update(repr((self.kind, self.entry, self.feeds_seed, self.edits, self.acts)).encode())
        if self.part:
            said.update(repr((self.part, self.is_fitting)).encode())
        return said.hexdigest()[:16]


def _model_bytes(model: Model) -> bytes:
    plain = msgspec.structs.replace(model, pools=(), operand_values=b"")
    values = hashlib.sha256(bytes(model.operand_values)).digest()
    for pool in model.pools:
        values += hashlib.sha256(pool.view if hasattr(pool, "view") else b"").digest()
    return repr(plain).encode() + values


def fuzz_seed_of(seed: int, number: int, kind: FuzzKind, seeds: FuzzSeeds) -> str:
    """The name of what a numbered input begins with."""
    if kind in _OF_ONE_MODEL:
        number //= ROUND
    return random.Random(f"{seed}:{kind.value}:{number}:seed").choice(seeds.names(kind.suffix))


def recipe_of(seed: int, number: int, kind: FuzzKind, seeds: FuzzSeeds, part: int = 0) -> Recipe:
    """The recipe of a numbered input of a seed, its decisions written down."""
    source = RecordedRandom(f"{seed}:{kind.value}:{number}")
    name = fuzz_seed_of(seed, number, kind, seeds)
    given = _made(kind, name, source, seeds)
    decisions = source.decisions
    if part:
        source = _part_source(seed, number, kind, part)
        next_part(given, part, source)
        decisions += source.decisions
    return Recipe(kind, name, tuple(decisions), part=part)


def numbered(seed: int, number: int, kind: FuzzKind, seeds: FuzzSeeds) -> FuzzInput:
    """A numbered input of a seed: the first part, where it has several."""
    source = RecordedRandom(f"{seed}:{kind.value}:{number}")
    name = fuzz_seed_of(seed, number, kind, seeds)
    return _made(kind, name, source, seeds)


def numbered_part(given: FuzzInput, seed: int, number: int, part: int) -> FuzzInput:
    """A later part of a numbered input, of any part before it."""
    return next_part(given, part, _part_source(seed, number, given.kind, part))


def _part_source(seed: int, number: int, kind: FuzzKind, part: int) -> RecordedRandom:
    return RecordedRandom(f"{seed}:{kind.value}:{number}:{part}")


def made(recipe: Recipe, seeds: FuzzSeeds) -> FuzzInput:
    """The input of a recipe; raises InvalidArgument for a seed that is not there."""
    source = ReplayedRandom(recipe.decisions)
    if recipe.content is not None:
        given = FuzzInput(recipe.kind, file=recipe.content, feeds_seed=source.getrandbits(32))
    else:
        given = _made(recipe.kind, recipe.seed, source, seeds)
    return next_part(given, recipe.part, source) if recipe.part else given


def next_part(given: FuzzInput, part: int, source: random.Random) -> FuzzInput:
    """Returns the same model with another request; every second one fits."""
    is_fitting = source.random() < 0.5
    given = msgspec.structs.replace(given, part=part, is_fitting=is_fitting)
    if given.sample is None:
        return msgspec.structs.replace(given, feeds_seed=source.getrandbits(32))
    mutator = Mutator(source)
    request = _request(given.sample, mutator)
    if request is not None and not is_fitting:
        request = changed_request(mutator, request)
    return msgspec.structs.replace(given, request=request, entry=source.choice(_ENTRIES))


def _made(kind: FuzzKind, name: str, source: random.Random, seeds: FuzzSeeds) -> FuzzInput:
    if kind.suffix:
        return _file(kind, seeds.file(name), source)
    mutator = Mutator(source)
    sample = seeds.sample(name)
    if kind is FuzzKind.MODELS:
        sample = mutator.sample(sample, seeds.samples)
    request = _request(sample, mutator)
    is_fitting = kind is not FuzzKind.REQUESTS
    if request is not None and not is_fitting:
        request = changed_request(mutator, request)
    return FuzzInput(
        kind,
        sample,
        request,
        is_fitting,
        source.choice(_ENTRIES),
        edits=byte_edits(source) if kind is FuzzKind.CACHE else (),
        acts=memory_acts(mutator, sample.model) if kind is FuzzKind.MEMORY else (),
    )


def _request(sample: FuzzSample, mutator: Mutator) -> Request | None:
    """A request for a model; None where its lists of inputs or outputs make no sense."""
    main = sample.model.main
    ends = (*main.input_indexes, *main.output_indexes)
    if not all(0 <= index < len(main.operands) for index in ends):
        return None
    if not all(_is_sane(main.operands[index].dimensions) for index in ends):
        return None
    return request_for(sample, mutator)


def _is_sane(dimensions: Sequence[int]) -> bool:
    return len(dimensions) < 60 and all(0 <= size < 2**32 for size in dimensions)


def _file(kind: FuzzKind, data: bytes, source: random.Random) -> FuzzInput:
    feeds_seed = source.getrandbits(32)
    by_field = _BY_FIELD.get(kind)
    if by_field is not None and source.random() < 0.7:
        return FuzzInput(kind, file=by_field(data, source), feeds_seed=feeds_seed)
    return FuzzInput(kind, file=edited(data, byte_edits(source)), feeds_seed=feeds_seed)
