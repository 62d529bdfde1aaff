"""What fuzzing begins with: own models, files of them in each format, and the files of a folder.

Files in foreign formats are those that the project's own engines write for LiteRT and ONNX Runtime,
where these are installed: nothing of others comes with the package.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path

from nnasync._core.deferred import deferred
from nnasync._core.drivers import built_in, is_installed
from nnasync._core.importers import LOADERS
from nnasync._core.model import save
from nnasync.engine import CachingEngine
from nnasync.errors import InvalidArgument, NNError
from nnasync.hal import ExecutionPreference, Model
from nnasync.suites.fuzz.samples import FuzzSample, own_samples

onnx_lowering = deferred("nnasync._core.drivers.onnxruntime.lowering")

_EVERY = 4
"""One in so many of the own models becomes a file of each format: each type of few operations."""
_MOST_BYTES = 8 << 20
_WRITERS = {".tflite": "litert-cpu", ".onnx": "onnxruntime-cpu"}


class FuzzSeeds:
    """Own models by name, and files by suffix; those of `folder` besides the own ones."""

    def __init__(self, folder: Path | None = None) -> None:
        self.samples: Sequence[FuzzSample] = own_samples()
        self._by_name = {
            f"{number} {sample.model.name}": sample for number, sample in enumerate(self.samples)
        }
        self._folder = folder
        self._given = {} if folder is None else _files_in(folder)
        self._names: dict[str, tuple[str, ...]] = {"": tuple(self._by_name)}

    def names(self, suffix: str) -> tuple[str, ...]:
        """The seeds of a suffix, or the models where it is empty.

        Raises InvalidArgument where there is none.
        """
        if suffix not in self._names:
            own = _own_files(suffix)
            found = (*own, *(name for name in self._given if name.endswith(suffix)))
            if not found:
                raise InvalidArgument(
                    f"there is no {suffix} file to begin with: install what writes them"
                    f" ({_WRITERS[suffix]}), or name a folder of such files"
                )
            self._names[suffix] = found
        return self._names[suffix]

    def is_own(self, name: str) -> bool:
        """Returns whether a seed comes with the package."""
        return name not in self._given

    def sample(self, name: str) -> FuzzSample:
        """A model by its name; raises InvalidArgument for one that is not there."""
        if name not in self._by_name:
            raise InvalidArgument(f"there is no model {name!r} to begin with in this version")
        return self._by_name[name]

    def file(self, name: str) -> bytes:
        """The content of a file by its name; raises InvalidArgument for one that is not there."""
        if name in self._given:
            return _read(self._given[name])
        content = _own_files(Path(name).suffix).get(name)
        if content is None:
            raise InvalidArgument(
                f"there is no file {name!r} to begin with; --corpus names a folder"
            )
        return content


def _files_in(folder: Path) -> dict[str, Path]:
    """The files of models in a folder that are not too large to be changed often."""
    if not folder.is_dir():
        raise InvalidArgument(f"{folder} is no folder of files to begin with")
    return {
        str(path.relative_to(folder)): path
        for path in sorted(folder.rglob("*"))
        if path.suffix in LOADERS and path.is_file() and path.stat().st_size <= _MOST_BYTES
    }


@functools.lru_cache(maxsize=64)
def _read(path: Path) -> bytes:
    return path.read_bytes()


@functools.cache
def _own_files(suffix: str) -> dict[str, bytes]:
    """Files of own models, by their names."""
    found = {}
    for number, sample in enumerate(own_samples()):
        if number % _EVERY and number > _EVERY:
            continue
        content = _written(sample.model, suffix)
        if content:
            found[f"own {number} {sample.model.name}{suffix}"] = content
    return found


def _written(model: Model, suffix: str) -> bytes:
    """A model as a file; empty where it cannot be one."""
    try:
        if suffix == ".nnm":
            return _as_nnm(model)
        if not is_installed(_WRITERS[suffix]):
            return b""
        return _as_tflite(model) if suffix == ".tflite" else _as_onnx(model)
    except NNError:
        return b""


def _as_nnm(model: Model) -> bytes:
    with tempfile.TemporaryDirectory(prefix="nnasync-") as folder:
        path = Path(folder) / "model.nnm"
        save(model, path)
        return path.read_bytes()


def _as_tflite(model: Model) -> bytes:
    engine = built_in(_WRITERS[".tflite"])
    if not isinstance(engine, CachingEngine) or not all(engine.supported_operations(model)):
        return b""
    plan = engine.compile(model, ExecutionPreference.SUSTAINED_SPEED)
    return bytes(engine.serialize(plan).model[1])


def _as_onnx(model: Model) -> bytes:
    if any(onnx_lowering.reasons(model)):
        return b""
    return bytes(onnx_lowering.lower(model))
