"""Memory pools that models and requests refer to.

A pool is one shared mapping with a file descriptor that can be handed to another process. Nothing
is copied: an array of a pool is a view of the mapping. There are four kinds:

    ashmem                memory of our own (`allocate`; `private`: without a descriptor)
    mmap_fd               a part of a file, or memory that a peer sent (`from_fd`, `from_file`)
    hardware_buffer_blob  a buffer of so many bytes (`blob`)
    hardware_buffer       an image (`image`), an input or output as a whole, never a constant

Life of a mapping: it belongs to whoever still looks at it. Closing a pool gives back its
descriptor and its own reference; the pages go with the last view, so an array never dangles. Memory
of our own is sealed against resizing where the system can do that: without the seal, a peer who
shrinks the file turns our next access into a bus error. `from_fd(..., require_sealed=True)` asks it
of a peer's memory. Memory that is not sealed is looked at again by `check`, which everybody who is
about to use a pool for a while calls; a file that shrinks after that still is a bus error.
"""

from __future__ import annotations

import math
import mmap
import operator
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from nnasync._core.arguments import check_whole, is_whole, or_none, path_of, told
from nnasync._core.deferred import deferred
from nnasync.errors import BadState, CallerError, DeviceError, GeneralFailure, InvalidArgument
from nnasync.hal import Array, Memory, Shape
from nnasync.memory.mapping import (
    anonymous_file,
    check_size,
    duplicate,
    is_sealed,
    mapped_bytes,
    private_bytes,
)
from nnasync.tracing import vlog

if TYPE_CHECKING:
    import numpy.typing as npt

    from nnasync.memory import image as images
    from nnasync.memory.image import ImageFormat, ImageLayout
else:
    images = deferred("nnasync.memory.image")

IMAGE = "hardware_buffer"
"""The kind of pools that are images."""

_PROT = mmap.PROT_READ | mmap.PROT_WRITE

# What stands for the descriptor where there is none (any more).
_CLOSED = -1
_PRIVATE = -2


class Pool:
    """A mapped piece of shared memory, of one of four kinds.

    A context manager; `close` may be called at any time and any number of times. `size` is in
    bytes, for images too. `image_layout` is None if it is not an image.
    """

    __slots__ = (
        "__weakref__",
        "_fd",
        "_own",
        "_view",
        "image_layout",
        "name",
        "offset",
        "prot",
        "size",
    )

    # At the end of the interpreter a module is gone before its last object.
    _close_fd = staticmethod(os.close)

    def __init__(
        self,
        name: str,
        fd: int,
        size: int,
        *,
        offset: int = 0,
        prot: int = _PROT,
        image_layout: ImageLayout | None = None,
        own: bool = False,
    ) -> None:
        """`size` bytes of `fd` from `offset`, unmapped; takes the descriptor over."""
        self.name = name
        self.size = size
        self.offset = offset
        self.prot = prot
        self.image_layout = image_layout
        self._own = own
        self._fd = fd
        self._view: memoryview | None = None

    # -- making one

    @classmethod
    def allocate(cls, size: int) -> Pool:
        """Zeroed memory of our own, "ashmem", in whole pages, shareable through `fd`.

        Raises InvalidArgument for a size below 1, ResourceExhaustedTransient where there is no
        memory or descriptor left.
        """
        return cls._allocated("ashmem", size)

    @classmethod
    def private(cls, size: int) -> Pool:
        """Zeroed memory of our own that only this process can use, "ashmem"; it has no `fd`.

        Raises what `allocate` does.
        """
        _check_wanted(size)
        pool = cls("ashmem", _PRIVATE, size, own=True)
        pool._view = private_bytes(size)
        return pool

    @classmethod
    def blob(cls, width: int) -> Pool:
        """Zeroed memory of `width` bytes, "hardware_buffer_blob"; raises what `allocate` does."""
        return cls._allocated("hardware_buffer_blob", width)

    @classmethod
    def image(
        cls, format: ImageFormat, width: int, height: int, *, row_stride: int | None = None
    ) -> Pool:
        """A zeroed image of `width` by `height` pixels, "hardware_buffer"; see `planes`.

        `row_stride` is in bytes, by default without padding. Raises InvalidArgument if this is not
        an image, ResourceExhaustedTransient.
        """
        layout = images.ImageLayout.of(format, width, height, row_stride)
        return cls._allocated(IMAGE, layout.size, layout)

    @classmethod
    def from_fd(
        cls,
        fd: int,
        size: int,
        *,
        offset: int = 0,
        writable: bool = True,
        require_sealed: bool = False,
        kind: str = "mmap_fd",
        image_layout: ImageLayout | None = None,
    ) -> Pool:
        """`size` bytes of a file from any `offset`; the descriptor stays the caller's.

        Raises InvalidArgument where the file is shorter, cannot be mapped that way, or is not
        sealed against shrinking although `require_sealed` asks for it; or for a kind that does not
        go with `image_layout`, which images have.
        """
        for name, value in (("fd", fd), ("size", size), ("offset", offset)):
            check_whole(name, value, 0)
        check_size(fd, size, offset)
        if require_sealed and not is_sealed(fd):
            raise InvalidArgument("shared memory of a peer must be sealed against shrinking")
        prot = _PROT if writable else mmap.PROT_READ
        pool = cls.from_handle(
            fd, size, offset=offset, prot=prot, kind=kind, image_layout=image_layout
        )
        return pool._mapped_now()

    @classmethod
    def from_handle(
        cls,
        fd: int,
        size: int,
        *,
        offset: int = 0,
        prot: int = _PROT,
        kind: str = "mmap_fd",
        image_layout: ImageLayout | None = None,
    ) -> Pool:
        """Returns a pool over memory that perhaps only other processes' drivers can read.

        It is mapped when somebody here first looks at it, and not checked before: a device that
        cannot use it says so. `prot` is of mmap.PROT_READ and mmap.PROT_WRITE.
        """
        if (kind == IMAGE) != (image_layout is not None):
            raise InvalidArgument(f"memory of kind {kind!r} is an image, or has the layout of one")
        if image_layout is not None:
            image_layout.check()
            if image_layout.size != size:
                raise InvalidArgument(f"this image takes {image_layout.size} bytes, not {size}")
        return cls(kind, duplicate(fd), size, offset=offset, prot=prot, image_layout=image_layout)

    @classmethod
    def from_file(
        cls, path: str | os.PathLike[str], *, offset: int = 0, size: int | None = None
    ) -> Pool:
        """A file, or `size` bytes of it from `offset`, mapped for reading.

        Raises OSError where it cannot be opened, InvalidArgument where it is too short or no path.
        """
        check_whole("offset", offset, 0)
        with open(path_of("path", path), "rb") as file:
            if size is None:
                size = os.fstat(file.fileno()).st_size - offset
            return cls.from_fd(file.fileno(), size, offset=offset, writable=False)

    @classmethod
    def _allocated(cls, kind: str, size: int, layout: ImageLayout | None = None) -> Pool:
        _check_wanted(size)
        return cls(kind, anonymous_file(size), size, image_layout=layout, own=True)._mapped_now()

    # -- looking at it

    @property
    def fd(self) -> int:
        """The descriptor of the memory; raises BadState when closed, InvalidArgument if private."""
        fd = self._fd
        if fd >= 0:
            return fd
        if fd == _PRIVATE:
            raise InvalidArgument(
                f"{self!r} is private to this process and has no descriptor; copy what another "
                "process is to have into memory of Pool.allocate"
            )
        raise BadState(f"{self!r} is closed")

    @property
    def is_private(self) -> bool:
        """Returns whether only this process can use it; False when closed."""
        return self._fd == _PRIVATE

    @property
    def readable(self) -> bool:
        """Returns whether its handle says that it may be read."""
        return bool(self.prot & mmap.PROT_READ)

    @property
    def writable(self) -> bool:
        """Returns whether it may be written."""
        return bool(self.prot & mmap.PROT_WRITE)

    @property
    def view(self) -> memoryview:
        """The whole pool as bytes, without a copy; raises BadState when closed.

        Raises InvalidArgument where memory `from_handle` cannot be mapped.
        """
        view = self._view
        return self._first_view() if view is None else view

    @property
    def closed(self) -> bool:
        """Returns whether `close` was called."""
        return self._fd == _CLOSED

    @property
    def planes(self) -> tuple[Array, ...]:
        """The planes of an image as views: one of (height, width, 3 or 4) uint8 for RGB and RGBA.

        For YCbCr 4:2:0 three of (rows, columns): Y, Cb, Cr. Raises InvalidArgument if it is not an
        image.
        """
        layout = self.image_layout
        if layout is None:
            raise InvalidArgument(f"{self!r} is no image; Pool.image makes one")
        return tuple(
            np.ndarray(
                plane.shape,
                np.uint8,
                buffer=self.view,
                offset=plane.offset,
                strides=(plane.row_stride, *(layout.channels, 1)[-len(plane.shape) + 1 :]),
            )
            for plane in layout.planes
        )

    def array(self, dtype: npt.DTypeLike, shape: Sequence[int], offset: int = 0) -> Array:
        """A C-contiguous view of the pool's bytes; raises InvalidArgument where it leaves them."""
        dtype, shape, length = _extent(dtype, shape)
        check_whole("offset", offset)
        if offset < 0 or any(n < 0 for n in shape) or offset + length > self.size:
            raise InvalidArgument(
                f"{dtype} {list(shape)} at offset {offset} leaves {self!r}: "
                f"it would take bytes {offset} to {offset + length}"
            )
        try:
            if length == 0:
                return np.empty(shape, dtype)
            return np.ndarray(shape, dtype, buffer=self.view, offset=offset)
        except ValueError as error:
            raise InvalidArgument(f"no array can have the shape {list(shape)}: {error}") from error

    def region(
        self,
        offset: int = 0,
        length: int | None = None,
        *,
        dtype: npt.DTypeLike = np.uint8,
        shape: Shape | None = None,
    ) -> Region:
        """A typed piece; without a length to the end, without a shape one-dimensional."""
        check_whole("offset", offset)
        or_none(check_whole, "length", length)
        if shape is None:
            dtype, *_ = _extent(dtype, ())
            length = self.size - offset if length is None else length
            shape = (length // dtype.itemsize,)
        else:
            dtype, shape, needed = _extent(dtype, shape)
            length = needed if length is None else length
        return Region(self, offset, length, dtype=dtype, shape=shape)

    def check(self) -> None:
        """Raise BadState or InvalidArgument where it cannot be used, or not any more.

        It is mapped then, and unless it is sealed, or our own, its file is as long as it was said.
        """
        self.view  # noqa: B018 - it maps, or raises
        if not self._own and not is_sealed(self.fd):
            check_size(self.fd, self.size, self.offset)

    # -- its end

    def close(self) -> None:
        """Release the descriptor now, and the pages once no view of them is left."""
        fd, self._fd = self._fd, _CLOSED
        # An explicit munmap would pull the pages from under arrays that numpy made of them.
        self._view = None
        if fd >= 0:
            self._close_fd(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_fd", _CLOSED) >= 0:
            self.close()

    def __repr__(self) -> str:
        layout = self.image_layout
        if layout is not None:
            return f"<{layout.format.name} image of {layout.width}x{layout.height} pixels>"
        return f"<{self.name} pool of {self.size} bytes>"

    def _mapped_now(self) -> Self:
        try:
            self._first_view()
        except BaseException:
            self.close()
            raise
        return self

    def _first_view(self) -> memoryview:
        fd = self.fd
        if not self.readable:
            raise InvalidArgument(f"{self!r} cannot be read: its handle is not for reading")
        check_size(fd, self.size, self.offset)
        view = self._view = mapped_bytes(
            fd, self.size, offset=self.offset, writable=self.writable, own=self._own
        )
        vlog.memory("mapped %r from offset %d", self, self.offset)
        return view


def _check_wanted(size: int) -> None:
    if not is_whole(size) or size < 1:
        raise InvalidArgument(
            f"cannot allocate a pool of {told(size)} bytes: a size of at least 1 is needed"
        )


def _extent(dtype: npt.DTypeLike, shape: Sequence[int]) -> tuple[np.dtype[Any], Shape, int]:
    """The type and the shape of an array, and its length in bytes; raises InvalidArgument."""
    try:
        kind, sides = np.dtype(dtype), tuple(map(operator.index, shape))
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"no array can have the dtype {told(dtype)} and the shape {told(shape)}: {error}"
        ) from error
    return kind, sides, kind.itemsize * math.prod(sides)


class Unusable:
    """Memory that was received but cannot be used; each access raises the reason."""

    def __init__(self, name: str, size: int, reason: str) -> None:
        self.name = name
        self.size = size
        self.reason = reason

    @property
    def view(self) -> memoryview:
        """Raises GeneralFailure."""
        raise GeneralFailure(self.reason)


def mapped(memory: Memory, what: str, *, writable: bool = False) -> memoryview:
    """The bytes of any memory, checked before they are used for a while.

    Raises GeneralFailure where it cannot be read or, with `writable`, not be written; `what` it is
    stands at the beginning of the text. Raises ResourceExhaustedTransient.
    """
    try:
        if isinstance(memory, Pool):
            memory.check()
        view = memory.view
    except (CallerError, DeviceError, OSError, ValueError) as error:
        raise GeneralFailure(f"{what} cannot be used: {error}") from error
    if writable and view.readonly:
        raise GeneralFailure(f"{what} cannot be written: its memory is for reading only")
    return view


def to_rgb(image: Pool, out: Array | None = None) -> Array:
    """A YCbCr image as (height, width, 3) uint8: BT.601, full range; in `out` if given.

    `out` may be a plane of another image. Raises InvalidArgument for other images, and for an `out`
    of another shape.
    """
    layout = image.image_layout if isinstance(image, Pool) else None
    if layout is None or layout.is_rgb:
        raise InvalidArgument(f"to_rgb takes a YCbCr image, not {image!r}")
    return images.rgb_of(image.planes, out)


class Region:
    """A typed piece of a pool; `array` is a numpy view of it, never a copy."""

    __slots__ = ("__weakref__", "array", "dtype", "length", "offset", "pool", "shape")

    def __init__(
        self, pool: Pool, offset: int, length: int, *, dtype: npt.DTypeLike, shape: Shape
    ) -> None:
        self.pool = pool
        self.offset = offset
        self.length = length
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.shape = tuple(shape)
        self.array: Array = pool.array(self.dtype, self.shape, offset)
        if self.array.nbytes != length:
            raise InvalidArgument(
                f"region at offset {offset} of {pool!r}: {length} bytes given, but {self.dtype} "
                f"{list(self.shape)} takes {self.array.nbytes}"
            )

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        if dtype is not None and np.dtype(dtype) != self.dtype:
            if copy is False:
                raise ValueError(f"a {self.dtype} region cannot be seen as {dtype} without a copy")
            return self.array.astype(dtype)
        return self.array.copy() if copy else self.array

    def __repr__(self) -> str:
        return f"Region({self.dtype} {list(self.shape)} at {self.offset} of {self.pool!r})"
