"""What the metadata of a file of a model say, in whatever form the file has them."""

from __future__ import annotations

from nnasync.hal import Struct


class PortMetadata(Struct, frozen=True):
    """What is said of an input or output; fields are empty where nothing is said.

    Inputs are (x - mean) / std of what they stand for, such as pixels from 0 to 255, with one
    number for all channels or one for each. `least` and `most` are the ends of the values.
    """

    name: str = ""
    description: str = ""
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    least: tuple[float, ...] = ()
    most: tuple[float, ...] = ()
    label_files: tuple[str, ...] = ()


class Metadata(Struct, frozen=True):
    """What a file says of its inputs and outputs, in their order."""

    inputs: tuple[PortMetadata, ...] = ()
    outputs: tuple[PortMetadata, ...] = ()
