"""What the cache remembers of a compilation as a whole: which entries make a plan, and the report.

The compiled code lies in an entry for each device and step; the manifest, an entry of its own, says
which of them belong together. So a compilation that is found needs no device to be asked about the
model. It may name two plans: one that is there at once, and a faster one that takes longer to load.
"""

from __future__ import annotations

import msgspec

from nnasync._core.compilation.choice import Choice, Part
from nnasync._core.compilation.report import Candidate, Partition, Rejection
from nnasync._core.compilation.verdicts import QUIET, Circumstances
from nnasync._core.engine_device.caching import skeleton_of
from nnasync.hal import ExtensionNameAndPrefix, Model, StatePair, Struct, Subgraph
from nnasync.hal.decoders import msgpack_decoder

MANIFEST = "nnasync manifest"
"""Stands for the name of a device in the keys of manifests."""

_FORMAT = 3
_MAX_STAGES = 2
_MAX_LINES = 4096


class Outline(Struct, frozen=True):
    """A model without operations and constants."""

    main: Subgraph
    extensions: tuple[ExtensionNameAndPrefix, ...] = ()
    state: tuple[StatePair, ...] = ()
    name: str = ""

    @classmethod
    def of(cls, model: Model) -> Outline:
        """The inputs and outputs of a model; raises BadState if an output is a constant."""
        seen = skeleton_of(model)
        return cls(seen.main, seen.extension_name_to_prefix, seen.state, seen.name)

    def model(self) -> Model:
        """The outline as a model, which cannot be compiled."""
        return Model(
            main=self.main,
            extension_name_to_prefix=self.extensions,
            state=self.state,
            name=self.name,
        )


class ManifestStage(Struct, frozen=True):
    """A plan: who runs what, and the form with fewer threads for runs beside others, if any.

    ready_ns: how long it took to load, with the import of the engine. median_ns: how long a run
    takes, if that was measured.
    """

    choice: Choice
    partitions: tuple[Partition, ...]
    narrow: Part | None = None
    ready_ns: int = 0
    median_ns: float | None = None


class Manifest(Struct, frozen=True):
    """The stages of a compilation, the last one to stay, and its report.

    `outline` stands for the model where that was not loaded: its inputs, outputs and states.
    `circumstances` are those of the contest that made the choice.
    """

    stages: tuple[ManifestStage, ...]
    outline: Outline
    pin: str
    reason: str
    candidates: tuple[Candidate, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    circumstances: Circumstances = QUIET
    format: int = _FORMAT


def encode_manifest(manifest: Manifest) -> bytes:
    """As the content of a cache file."""
    return msgspec.msgpack.encode(manifest)


def decode_manifest(data: bytes | memoryview) -> Manifest | None:
    """What `encode_manifest` gave; None for anything that makes no sense."""
    try:
        manifest = msgpack_decoder(Manifest).decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    is_sound = (
        manifest.format == _FORMAT
        and 1 <= len(manifest.stages) <= _MAX_STAGES
        and all(stage.choice.parts for stage in manifest.stages)
        and max(len(manifest.candidates), len(manifest.rejections)) <= _MAX_LINES
    )
    return manifest if is_sound else None
