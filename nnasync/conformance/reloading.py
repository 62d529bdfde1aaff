"""A model compiled into cache files and loaded from them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile

from nnasync.device import Device, PreparedModel, PrepareModelConfig
from nnasync.hal import Model


async def reload(device: Device, model: Model) -> PreparedModel | None:
    """The prepared model that a device loads from what it wrote to its cache files.

    None where it wrote nothing, which is its right. The files are in memory where the system can do
    that. Raises what the device does.
    """
    token = hashlib.sha256(model.name.encode()).digest()
    numbers = await device.get_number_of_cache_files_needed()
    with contextlib.ExitStack() as stack:
        model_cache, data_cache = ([_file(stack) for _ in range(number)] for number in numbers)
        prepared = await device.prepare_model(
            model, PrepareModelConfig(model_cache=model_cache, data_cache=data_cache, token=token)
        )
        await prepared.close()
        if not any(os.fstat(fd).st_size for fd in (*model_cache, *data_cache)):
            return None
        return await device.prepare_model_from_cache(
            PrepareModelConfig(model_cache=model_cache, data_cache=data_cache, token=token)
        )


def _file(stack: contextlib.ExitStack) -> int:
    """The descriptor of a new file without a name."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("nnasync-cache", os.MFD_CLOEXEC)
        stack.callback(os.close, fd)
        return fd
    return stack.enter_context(tempfile.TemporaryFile()).fileno()
