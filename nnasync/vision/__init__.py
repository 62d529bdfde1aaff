"""What stands between pictures and networks: input made of pictures, boxes, drawing."""

from __future__ import annotations

from nnasync.vision.boxes import Box, Boxes, areas, overlaps
from nnasync.vision.drawing import PALETTE, Canvas, Color, draw
from nnasync.vision.pictures import Picture, VideoFrame, Window
from nnasync.vision.placement import Fit, Placement, Size, placement
from nnasync.vision.preparing import (
    IMAGENET,
    MINUS_ONE_TO_ONE,
    ZERO_TO_ONE,
    Normalization,
    PictureInput,
    Prepared,
    prepare,
)
from nnasync.vision.resizing import resized

__all__ = [
    "IMAGENET",
    "MINUS_ONE_TO_ONE",
    "PALETTE",
    "ZERO_TO_ONE",
    "Box",
    "Boxes",
    "Canvas",
    "Color",
    "Fit",
    "Normalization",
    "Picture",
    "PictureInput",
    "Placement",
    "Prepared",
    "Size",
    "VideoFrame",
    "Window",
    "areas",
    "draw",
    "overlaps",
    "placement",
    "prepare",
    "resized",
]
