"""Outputs of detection networks as boxes: one class for each kind of head."""

from __future__ import annotations

from nnasync.vision.heads.anchors import AnchorHead as AnchorHead
from nnasync.vision.heads.anchors import anchors_on_grids as anchors_on_grids
from nnasync.vision.heads.corners import CornerHead as CornerHead
from nnasync.vision.heads.corners import PostprocessHead as PostprocessHead
from nnasync.vision.heads.distances import DistanceHead as DistanceHead
from nnasync.vision.heads.head import Head as Head
from nnasync.vision.heads.yolo import YoloHead as YoloHead
from nnasync.vision.heads.yolo_grids import YoloGridHead as YoloGridHead
