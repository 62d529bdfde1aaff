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


class Recipe(msgspec.Struct, frozen=True):
    """An input as data: its kind, the name of its seed, and the decisions of its changes.

    `content` is a whole changed file, where the seed is one that only its owner has.
    """

    kind: FuzzKind
    seed: str
    decisions: tuple[int, ...] = ()
    content: bytes | None = None


class FuzzInput(msgspec.Struct, frozen=True):
    """What a device is given: a model, or a file of one, and what is done with it.

    `feeds_seed` chooses the values for the inputs of a model that a file holds. `is_fitting` is
    whether the request is one that fits, as far as shapes are known.
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

    @property
    def leaves_model(self) -> bool:
        """Whether the model is that of the seed: one that is prepared may serve several inputs."""
        return self.kind in _OF_ONE_MODEL

    @property
    def digest(self) -> str:
        """What tells this input from others."""
        said = hashlib.sha256(self.file)
        if self.sample is not None:
            said.update(_model_bytes(self.sample.model))
        if self.request is not None:
            request = self.request
            said.update(repr((request.inputs, request.outputs)).encode())
            for pool in request.pools:
                said.update(pool.view if hasattr(pool, "view") else repr(pool).encode())
        said.update(repr((self.kind, self.entry, self.feeds_seed, self.edits, self.acts)).encode())
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


def recipe_of(seed: int, number: int, kind: FuzzKind, seeds: FuzzSeeds) -> Recipe:
    """The recipe of a numbered input of a seed, its decisions written down."""
    source = RecordedRandom(f"{seed}:{kind.value}:{number}")
    name = fuzz_seed_of(seed, number, kind, seeds)
    _made(kind, name, source, seeds)
    return Recipe(kind, name, tuple(source.decisions))


def numbered(seed: int, number: int, kind: FuzzKind, seeds: FuzzSeeds) -> FuzzInput:
    """A numbered input of a seed."""
    source = RecordedRandom(f"{seed}:{kind.value}:{number}")
    name = fuzz_seed_of(seed, number, kind, seeds)
    return _made(kind, name, source, seeds)


def made(recipe: Recipe, seeds: FuzzSeeds) -> FuzzInput:
    """The input of a recipe; raises InvalidArgument for a seed that is not there."""
    source = ReplayedRandom(recipe.decisions)
    if recipe.content is not None:
        return FuzzInput(recipe.kind, file=recipe.content, feeds_seed=source.getrandbits(32))
    return _made(recipe.kind, recipe.seed, source, seeds)


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
    entry = source.choice((Entry.SYNC, Entry.SYNC, Entry.SYNC, Entry.QUEUED, Entry.FENCED))
    return FuzzInput(
        kind,
        sample,
        request,
        is_fitting,
        entry,
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
