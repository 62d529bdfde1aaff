"""What stands between pictures and networks: input, boxes, drawing."""

from __future__ import annotations

from nnasync.vision.boxes import Box, Boxes, areas, overlaps
from nnasync.vision.detector import Detector
from nnasync.vision.drawing import PALETTE, Canvas, Color, draw
from nnasync.vision.heads import (
    AnchorHead,
    CornerHead,
    DistanceHead,
    Head,
    PostprocessHead,
    YoloGridHead,
    YoloHead,
    anchors_on_grids,
)
from nnasync.vision.pictures import Picture, VideoFrame, Window
from nnasync.vision.placement import Fit, Placement, Size, placement
from nnasync.vision.precision import average_precisions, mean_average_precision
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
from nnasync.vision.suppression import suppressed
from nnasync.vision.tracker import Tracker

__all__ = [
    "IMAGENET",
    "MINUS_ONE_TO_ONE",
    "PALETTE",
    "ZERO_TO_ONE",
    "AnchorHead",
    "Box",
    "Boxes",
    "Canvas",
    "Color",
    "CornerHead",
    "Detector",
    "DistanceHead",
    "Fit",
    "Head",
    "Normalization",
    "Picture",
    "PictureInput",
    "Placement",
    "PostprocessHead",
    "Prepared",
    "Size",
    "Tracker",
    "VideoFrame",
    "Window",
    "YoloGridHead",
    "YoloHead",
    "anchors_on_grids",
    "areas",
    "average_precisions",
    "draw",
    "mean_average_precision",
    "overlaps",
    "placement",
    "prepare",
    "resized",
    "suppressed",
]
