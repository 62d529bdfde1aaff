"""Lists of networks with their data, as people write them, and as Android's benchmark has them.

A list in TOML:

    [[models]]
    name = "mobilenet"                      # by default the file's
    file = "mobilenet.tflite"               # relative to the list, as all files
    evaluator = "top-k"                     # or phone-errors, speech, signal-to-noise
    expected_top1 = 0.6
    value_limit_bytes = 2147483648          # what a value of the file may take, as of nnasync.load
    cases = [{ inputs = ["cup.input"], outputs = ["cup.output"], class = 505 }]
    [models.pictures]
    folder = "images"
    labels = "labels.txt"                   # names of the classes, one a line
    truth = "ground_truth.json"             # by default the one in the folder, or its sub-folders
    preprocessing = "inception"             # or network

A file of a case holds raw values, little-endian, of one step or of several that follow one another.
A list in JSON is the same, or has the fields of the originals: `modelFile`, `inputOutputs`,
`dataset` and `evaluator` with `className`. A network without data gets random inputs.
"""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from nnasync._core.execution.ports import Port, Ports
from nnasync.errors import InvalidArgument
from nnasync.hal import Array
from nnasync.suites.benchmark.data import DataSequence, DataSet
from nnasync.suites.benchmark.evaluators import Evaluator, PhoneErrors, TopK
from nnasync.suites.benchmark.pictures import (
    LabeledPicture,
    Preprocessing,
    labeled_pictures,
    picture_data,
    stated_normalization,
)
from nnasync.suites.benchmark.running import Subject
from nnasync.suites.benchmark.signal_evaluators import SignalToNoise, SpeechDistortion

EvaluatorName = Literal["top-k", "phone-errors", "speech", "signal-to-noise"]
RANDOM_SEQUENCES = 20

_MODELS = frozenset({".tflite", ".onnx", ".nnm"})
_LISTS = ("benchmark.toml", "benchmark.json")


class ModelCase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sequence in files; `label` ("class" in a list) is the number of the right class."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    label: int | None = msgspec.field(default=None, name="class")


class PictureFolder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Pictures with labels; the names of the classes are those of the model, if no file has them.

    Without both, the classes are the labels in their order.
    """

    folder: str
    labels: str = ""
    truth: str = ""
    preprocessing: Preprocessing = "inception"


class ListedModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A network of a list; `scales` is a file of (mean, deviation) pairs, float32, for speech."""

    file: str
    name: str = ""
    evaluator: EvaluatorName | None = None
    expected_top1: float = 0.0
    scales: str = ""
    cases: tuple[ModelCase, ...] = ()
    pictures: PictureFolder | None = None
    value_limit_bytes: Annotated[int, msgspec.Meta(gt=0)] | None = None


class ModelList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The networks of a list."""

    models: tuple[ListedModel, ...]


def read_model_list(path: Path) -> tuple[Subject, ...]:
    """The networks of a list; raises InvalidArgument with the place in the file, OSError."""
    try:
        data = path.read_bytes()
        is_toml = path.suffix == ".toml"
        plain = tomllib.loads(data.decode()) if is_toml else msgspec.json.decode(data)
        listed = _listed(plain)
    except (msgspec.MsgspecError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path} is no list of models: {error}") from error
    if not listed:
        raise InvalidArgument(f"{path} lists no models")
    return tuple(subject_of(each, path.parent) for each in listed)


def subject_of(listed: ListedModel, folder: Path) -> Subject:
    """A network of a list whose files are in a folder."""
    name = listed.name or Path(listed.file).stem
    read = functools.partial(_read_data, listed, folder)
    evaluator, limit_bytes = _evaluator(listed, folder), listed.value_limit_bytes
    return Subject(name, folder / listed.file, read, evaluator, limit_bytes)


def _listed(plain: Any) -> tuple[ListedModel, ...]:
    """The models of a list, ours or one of the originals; raises ValidationError."""
    models = plain.get("models") if isinstance(plain, dict) else None
    first = models[0] if isinstance(models, list) and models else None
    if isinstance(first, dict) and "modelFile" in first:
        originals = msgspec.convert(plain, _OriginalList).models
        return tuple(map(_ours, originals))
    return msgspec.convert(plain, ModelList).models


def subjects_in(path: Path) -> tuple[Subject, ...]:
    """The networks that a path names: a list, a model, or a folder.

    A folder has a list, benchmark.toml or benchmark.json, or else models, which get random inputs.
    Raises InvalidArgument for a folder with neither, and for what is neither, OSError.
    """
    if path.is_dir():
        lists = [path / name for name in _LISTS if (path / name).is_file()]
        if lists:
            return read_model_list(lists[0])
        files = sorted(each for each in path.iterdir() if each.suffix.lower() in _MODELS)
        if not files:
            raise InvalidArgument(
                f"{path} has no models ({', '.join(sorted(_MODELS))}) and no {' or '.join(_LISTS)}"
            )
        return tuple(subject_of(ListedModel(each.name), path) for each in files)
    if path.suffix.lower() in _MODELS:
        if not path.is_file():
            raise InvalidArgument(f"there is no file {path}")
        return (subject_of(ListedModel(path.name), path.parent),)
    if path.suffix.lower() not in (".toml", ".json"):
        raise InvalidArgument(
            f"{path} is neither a model ({', '.join(sorted(_MODELS))}), a list of models (.toml, "
            ".json) nor a folder of models"
        )
    return read_model_list(path)


def random_data(ports: Ports) -> DataSet:
    """Returns sequences of one step of random values; floats are between 0 and 1."""
    random = np.random.default_rng(0)
    for port in ports.inputs:
        if not port.is_settled:
            raise InvalidArgument(
                f"input {port.name!r} has the open shape {list(port.shape)}: a list must give it "
                "inputs from files"
            )
    return DataSet(
        tuple(
            DataSequence(tuple(_random(port, random) for port in ports.inputs))
            for _ in range(RANDOM_SEQUENCES)
        ),
        ("random inputs",),
    )


# -- the data of a network


def _read_data(listed: ListedModel, folder: Path, ports: Ports) -> DataSet:
    sequences = [_sequence(case, folder, ports) for case in listed.cases]
    notes: tuple[str, ...] = ()
    if listed.pictures is not None:
        shown = _pictures(listed, listed.pictures, folder, ports)
        sequences += shown.sequences
        notes = shown.notes
    return DataSet(tuple(sequences), notes) if sequences else random_data(ports)


def _pictures(listed: ListedModel, given: PictureFolder, folder: Path, ports: Ports) -> DataSet:
    truth = folder / given.truth if given.truth else None
    pictures = labeled_pictures(folder / given.folder, truth)
    classes = _classes(pictures, folder / given.labels if given.labels else None)
    is_own = given.preprocessing == "network"
    normalization = stated_normalization(folder / listed.file) if is_own else None
    return picture_data(pictures, classes, ports, given.preprocessing, normalization)


def _classes(pictures: Sequence[LabeledPicture], file: Path | None) -> list[str]:
    if file is None:
        return sorted({each.label for each in pictures})
    return file.read_text(encoding="utf-8").splitlines()


def _sequence(case: ModelCase, folder: Path, ports: Ports) -> DataSequence:
    inputs = _steps_in(case.inputs, folder, ports.inputs, "inputs")
    golden = _steps_in(case.outputs, folder, ports.outputs, "outputs") if case.outputs else ()
    counts = {len(each) for each in (*inputs, *golden)}
    if len(counts) > 1:
        raise InvalidArgument(f"{case.inputs[0]}: the files hold {sorted(counts)} steps")
    truth = None if case.label is None else np.array([case.label])
    return DataSequence(inputs, golden, truth)


def _steps_in(
    files: Sequence[str], folder: Path, ports: Sequence[Port], what: str
) -> tuple[Array, ...]:
    """The steps of each port: a file for each, or for outputs only for the first ones."""
    if not files or len(files) > len(ports) or (what == "inputs" and len(files) < len(ports)):
        raise InvalidArgument(
            f"{len(files)} files of {what} are given, the network has {len(ports)} {what}"
        )
    return tuple(_steps(folder / name, port) for name, port in zip(files, ports, strict=False))


def _steps(path: Path, port: Port) -> Array:
    size = math.prod(port.shape) * port.dtype.itemsize
    data = path.read_bytes()
    if not size or not data or len(data) % size:
        raise InvalidArgument(
            f"{path} has {len(data)} bytes; a step of {port} has {size}, and files hold whole ones"
        )
    return np.frombuffer(data, port.dtype.newbyteorder("<")).reshape(-1, *port.shape)


def _random(port: Port, random: np.random.Generator) -> Array:
    shape = (1, *port.shape)
    if port.dtype.kind == "f":
        return random.random(shape).astype(port.dtype)
    if port.dtype.kind == "b" or port.dtype.itemsize > 2:
        return random.integers(0, 2, shape).astype(port.dtype)
    limits = np.iinfo(port.dtype)
    return random.integers(limits.min, limits.max, shape, port.dtype, endpoint=True)


def _evaluator(listed: ListedModel, folder: Path) -> Evaluator | None:
    if listed.evaluator == "speech":
        return SpeechDistortion(_scales(folder / listed.scales) if listed.scales else ())
    if listed.evaluator == "top-k" or (listed.evaluator is None and _has_classes(listed)):
        return TopK(listed.expected_top1)
    return None if listed.evaluator is None else _EVALUATORS[listed.evaluator]()


def _has_classes(listed: ListedModel) -> bool:
    return listed.pictures is not None or any(case.label is not None for case in listed.cases)


def _scales(path: Path) -> tuple[tuple[float, float], ...]:
    values = np.frombuffer(path.read_bytes(), "<f4")
    if len(values) % 2:
        raise InvalidArgument(f"{path} holds {len(values)} numbers, pairs are wanted")
    return tuple((float(mean), float(deviation)) for mean, deviation in values.reshape(-1, 2))


# -- lists of the originals


class _OriginalCase(msgspec.Struct, frozen=True):
    input: str
    output: str = ""
    outputs: tuple[str, ...] = ()


class _OriginalPictures(msgspec.Struct, frozen=True, rename="camel"):
    input_path: str
    ground_truth: str = ""
    labels: str = ""


class _OriginalEvaluator(msgspec.Struct, frozen=True, rename="camel"):
    class_name: Literal["TopK", "MelCepLogF0", "PhoneErrorRate"]
    output_mean_std_dev: str = ""
    expected_top1: float = msgspec.field(default=0.0, name="expectedTop1")


class _OriginalModel(msgspec.Struct, frozen=True, rename="camel"):
    """What is used of a model of an original list; the rest of its fields says what files say."""

    model_file: str
    name: str = ""
    input_outputs: tuple[_OriginalCase, ...] = ()
    dataset: _OriginalPictures | None = None
    evaluator: _OriginalEvaluator | None = None


class _OriginalList(msgspec.Struct, frozen=True):
    models: tuple[_OriginalModel, ...]


def _ours(given: _OriginalModel) -> ListedModel:
    data, judge = given.dataset, given.evaluator
    return ListedModel(
        f"{given.model_file}.tflite",
        given.name,
        None if judge is None else _CLASSES[judge.class_name],
        0.0 if judge is None else judge.expected_top1,
        "" if judge is None else judge.output_mean_std_dev,
        tuple(
            ModelCase((each.input,), each.outputs or tuple(filter(None, [each.output])))
            for each in given.input_outputs
        ),
        None if data is None else PictureFolder(data.input_path, data.labels, data.ground_truth),
    )


_EVALUATORS: dict[str, type[PhoneErrors] | type[SignalToNoise]] = {
    "phone-errors": PhoneErrors,
    "signal-to-noise": SignalToNoise,
}
_CLASSES: dict[str, EvaluatorName] = {
    "TopK": "top-k",
    "MelCepLogF0": "speech",
    "PhoneErrorRate": "phone-errors",
}
