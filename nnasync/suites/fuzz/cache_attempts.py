"""A compilation that a device kept, damaged, and loaded again."""

from __future__ import annotations

import contextlib
import os
import tempfile

from nnasync.device import Device, PreparedModel, PrepareModelConfig
from nnasync.errors import DeviceDied, NNError
from nnasync.hal import Model
from nnasync.suites.fuzz.bytes_edits import ByteEdit, edited
from nnasync.suites.fuzz.verdicts import Broken, BrokenPromise

_TOKEN = bytes(range(32))


async def reloaded(
    device: Device, model: Model, edits: tuple[ByteEdit, ...]
) -> PreparedModel | None:
    """Returns what the device loads from cache files with changed bytes; None if it refuses."""
    numbers = await device.get_number_of_cache_files_needed()
    with contextlib.ExitStack() as stack:
        model_cache, data_cache = ([_file(stack) for _ in range(number)] for number in numbers)
        config = PrepareModelConfig(model_cache=model_cache, data_cache=data_cache, token=_TOKEN)
        try:
            prepared = await device.prepare_model(model, config)
            await prepared.close()
            files = [fd for fd in (*model_cache, *data_cache) if os.fstat(fd).st_size]
            if not files:
                return None
            for number, edit in enumerate(edits):
                _change(files[number % len(files)], edit)
            return await device.prepare_model_from_cache(config)
        except DeviceDied:
            raise
        except NNError:
            return None
        except Exception as error:
            text = f"prepare_model_from_cache: {type(error).__name__}: {error}"
            raise BrokenPromise(Broken.ERROR, text) from error


def _file(stack: contextlib.ExitStack) -> int:
    """A descriptor of an empty file until the stack is closed: in memory, where there are such."""
    if not hasattr(os, "memfd_create"):
        return stack.enter_context(tempfile.TemporaryFile()).fileno()
    fd = os.memfd_create("nnasync-fuzz-cache", os.MFD_CLOEXEC)
    stack.callback(os.close, fd)
    return fd


def _change(fd: int, edit: ByteEdit) -> None:
    content = os.pread(fd, os.fstat(fd).st_size, 0)
    changed = edited(content, (edit,))
    os.ftruncate(fd, len(changed))
    os.pwrite(fd, changed, 0)
