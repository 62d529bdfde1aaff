"""A detection network as one coroutine: a picture in, boxes in that picture out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from nnasync._core.arguments import check_kind, check_share, check_whole, or_none, told, words
from nnasync._core.clock import Deadline
from nnasync._core.execution.network import Network, check_network
from nnasync._core.workers.anyio_threads import in_helper_thread
from nnasync.errors import InvalidArgument
from nnasync.hal import Priority
from nnasync.vision.boxes import Boxes
from nnasync.vision.heads.head import Head
from nnasync.vision.pictures import Picture, size_of
from nnasync.vision.placement import Fit, Placement, check_fit
from nnasync.vision.preparing import (
    Normalization,
    PictureInput,
    Prepared,
    check_normalization,
    prepare,
)
from nnasync.vision.suppression import suppressed

_QUICK_PIXELS = 1 << 17
"""Pictures up to this size are prepared at once, in less time than a thread needs to be woken."""
_QUICK_NUMBERS = 1 << 16
"""And outputs with so many numbers are decoded at once."""


class LabeledNetwork(Network, Protocol):
    """The part of a detection network (`nnasync.Net`) that is used here."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Returns the names of the network's classes, as far as they are known."""
        ...

    def dequantize(self, result: Any) -> Any:
        """Returns the real values of a result."""
        ...


class Detector:
    """`await detector(picture)` gives the boxes of a picture; it is a stage of a graph, too.

    A compiled network, the head that knows what its outputs mean, and how boxes are chosen.
    """

    def __init__(
        self,
        net: LabeledNetwork,
        head: Head,
        *,
        names: Sequence[str] = (),
        outputs: Sequence[str] = (),
        threshold: float = 0.5,
        overlap: float = 0.5,
        per_class: bool = True,
        most: int | None = 100,
        fit: Fit = "letterbox",
        normalization: Normalization | None = None,
        size: tuple[int, int] | None = None,
    ) -> None:
        """`names` are those of the classes, by default the labels that the model came with.

        `outputs` are the names of the network's outputs in the head's order.

        Boxes of a score below `threshold` go, and of those that overlap by more than `overlap` all
        but the best (see `suppressed`), down to `most`. For the others see `prepare`. Raises
        InvalidArgument where the network has no picture as its input, or other outputs than the
        head, and for a threshold or an overlap that is not from 0 to 1.
        """
        check_network("net", net)
        _check_head(head)
        names, outputs = words("names", names), words("outputs", outputs)
        check_share("threshold", threshold)
        check_share("overlap", overlap)
        or_none(check_whole, "most", most, 0)
        check_fit(fit)
        check_normalization(normalization)
        self._net = net
        self._head = head
        self._input = PictureInput.of(net, size=size)
        self._names = names or net.labels
        self._order = _order(net, outputs, head.outputs)
        self._threshold = threshold
        self._overlap = overlap
        self._per_class = per_class
        self._most = most
        self._fit: Fit = fit
        self._normalization = normalization

    async def __call__(
        self,
        picture: Picture,
        *,
        deadline: Deadline | None = None,
        priority: Priority | None = None,
    ) -> Boxes:
        """Returns the boxes of a picture (see `Picture`), in its pixels, the surest first.

        Pictures and outputs that take long to convert are converted in a thread. Raises
        InvalidArgument for what is no picture, and what the network raises.
        """
        width, height = size_of(picture)
        if width * height <= _QUICK_PIXELS:
            prepared = self.prepare(picture)
        else:
            prepared = await in_helper_thread(self.prepare, picture)
        result = await self._net(prepared.input, deadline=deadline, priority=priority)
        if sum(np.size(each) for each in _several(result)) <= _QUICK_NUMBERS:
            return self.decode(result, prepared.placement)
        return await in_helper_thread(self.decode, result, prepared.placement)

    def prepare(self, picture: Picture) -> Prepared:
        """Returns a picture as the network takes it."""
        return prepare(
            picture,
            self._input.port,
            fit=self._fit,
            normalization=self._normalization,
            size=(self._input.height, self._input.width),
        )

    def decode(self, result: Any, placement: Placement) -> Boxes:
        """Returns the boxes that a result of the network stands for, in the pixels of the picture.

        Raises InvalidArgument for a result of another shape, and for no placement.
        """
        check_kind("placement", placement, Placement, "a Placement, as `prepare` gives it")
        real = _several(self._net.dequantize(result))
        size = (self._input.height, self._input.width)
        found = self._head.decode([real[n] for n in self._order], size, self._threshold)
        best = suppressed(
            found.finite(), overlap=self._overlap, per_class=self._per_class, most=self._most
        )
        return placement.to_picture(msgspec.structs.replace(best, names=self._names))


def _check_head(head: object) -> None:
    is_one = callable(getattr(head, "decode", None)) and hasattr(head, "outputs")
    if not is_one or isinstance(head, type):
        hint = f"; {head.__name__}() makes one" if is_one and isinstance(head, type) else ""
        raise InvalidArgument(f"head is {told(head)}, it must be a head, such as YoloHead(){hint}")


def _several(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def _order(net: Network, names: Sequence[str], count: int) -> list[int]:
    """Returns the numbers of the outputs, in the order that the head wants."""
    known = [port.name for port in net.outputs]
    if not names and len(known) == count:
        return list(range(count))
    if len(names) != count or not set(names) <= set(known):
        raise InvalidArgument(
            f"this head has {count} outputs, the network {len(known)} ({', '.join(known)}): name "
            "those of the head in its order, outputs=(...)"
        )
    return [known.index(name) for name in names]
