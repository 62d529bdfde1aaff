"""System shared memory: what is registered, read in place, refused, shortened, not ours."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import numpy as np
import pytest

from nnasync import memory
from nnasync.serving.messages import RegionSlice
from nnasync.serving.problems import ServingError
from nnasync.serving.shared_memory import FOLDER, RegionStatus, SharedMemory
from tests.conftest import open_descriptors, opened_since

pytestmark = pytest.mark.skipif(
    not Path(FOLDER).is_dir(), reason="there is no folder of POSIX shared memory"
)

OPEN_FAILED = "Unable to open shared memory region"
INVALID = "Invalid offset"


class File:
    """A file of shared memory of a client."""

    def __init__(self, size: int = 4096, mode: int = 0o600) -> None:
        self.key = f"/nnasync_test_{secrets.token_hex(8)}"
        self.path = Path(FOLDER + self.key)
        self.path.write_bytes(bytes(size))
        self.path.chmod(mode)


@pytest.fixture
def file() -> Iterator[File]:
    with made() as file:
        yield file


@contextlib.contextmanager
def made(size: int = 4096, mode: int = 0o600) -> Iterator[File]:
    file = File(size, mode)
    try:
        yield file
    finally:
        file.path.unlink(missing_ok=True)


@pytest.fixture
def shared() -> Iterator[SharedMemory]:
    shared = SharedMemory()
    yield shared
    shared.close()


@pytest.fixture(params=[0o600, 0o622], ids=["mapped", "copied"])
def either(request: pytest.FixtureRequest) -> Iterator[File]:
    """A file that is mapped, and one that others may write, which is not."""
    with made(mode=request.param) as file:
        yield file


def refused(code: HTTPStatus, text: str) -> pytest.RaisesExc[ServingError]:
    return pytest.RaisesExc(ServingError, match=text, check=lambda error: error.code == code)


def test_what_a_client_writes_is_read(shared: SharedMemory, either: File) -> None:
    shared.register("r", either.key, 0, 4096)
    with either.path.open("r+b") as client:
        client.seek(16)
        client.write(b"hello")
    assert bytes(shared.view(RegionSlice("r", 5, 16))) == b"hello"


def test_what_the_server_writes_a_client_reads(shared: SharedMemory, either: File) -> None:
    shared.register("r", either.key, 8, 1000)
    shared.write(RegionSlice("r", 100, 24), np.arange(4, dtype=np.float32).data)
    assert either.path.read_bytes()[32:48] == np.arange(4, dtype=np.float32).tobytes()
    assert either.path.stat().st_size == 4096


@pytest.mark.usefixtures("collected")
def test_memory_of_ours_is_mapped_once_and_not_copied(shared: SharedMemory, file: File) -> None:
    before = memory.statistics().pools
    shared.register("r", file.key, 0, 4096)
    place = RegionSlice("r", 16)
    first, second = shared.view(place), shared.view(place)
    assert memory.statistics().pools == before + 1
    with file.path.open("r+b") as client:
        client.write(b"x")
    assert first[0] == second[0] == ord("x")


@pytest.mark.usefixtures("collected")
def test_memory_that_others_may_write_is_never_mapped(shared: SharedMemory) -> None:
    before = memory.statistics().pools
    with made(mode=0o666) as file:
        shared.register("r", file.key, 0, 4096)
        view = shared.view(RegionSlice("r", 16))
        assert memory.statistics().pools == before
        with file.path.open("r+b") as client:
            client.write(b"x")
        assert view[0] == 0


def test_the_list_of_regions(shared: SharedMemory, file: File) -> None:
    assert shared.status() == []
    shared.register("r", file.key, 8, 64)
    shared.register("s", file.key, 0, 4096)
    assert shared.status("r") == [RegionStatus("r", file.key, 8, 64)]
    assert [status.name for status in shared.status()] == ["r", "s"]
    shared.unregister("r")
    with refused(HTTPStatus.NOT_FOUND, "Unable to find system shared memory region: 'r'"):
        shared.status("r")
    shared.unregister()
    assert shared.status() == []


def test_a_name_can_be_used_once_until_it_is_free(shared: SharedMemory, file: File) -> None:
    shared.register("r", file.key, 0, 64)
    with refused(HTTPStatus.BAD_REQUEST, "shared memory region 'r' already in manager"):
        shared.register("r", file.key, 0, 64)
    shared.unregister("r")
    shared.unregister("r")  # as Triton has it: what is not there is unregistered already
    shared.register("r", file.key, 0, 64)


@pytest.mark.parametrize(
    "key",
    ["", "/", "//", ".", "/..", "/../etc/passwd", "/a/b", "a/../../etc/passwd", "/a\0b", "x" * 300],
)
def test_a_key_is_a_name_in_that_folder_and_no_path(shared: SharedMemory, key: str) -> None:
    with refused(HTTPStatus.BAD_REQUEST, OPEN_FAILED):
        shared.register("r", key, 0, 64)


def test_what_is_no_plain_file_of_shared_memory(shared: SharedMemory, file: File) -> None:
    link = Path(f"{file.path}_link")
    link.symlink_to(file.path)
    folder = Path(f"{file.path}_folder")
    folder.mkdir()
    pipe = Path(f"{file.path}_pipe")
    os.mkfifo(pipe)
    try:
        for each in (link, folder, pipe):
            with refused(HTTPStatus.INTERNAL_SERVER_ERROR, OPEN_FAILED):
                shared.register("r", f"/{each.name}", 0, 64)
    finally:
        link.unlink()
        folder.rmdir()
        pipe.unlink()


def test_a_file_that_is_not_there(shared: SharedMemory) -> None:
    with refused(HTTPStatus.INTERNAL_SERVER_ERROR, OPEN_FAILED):
        shared.register("r", "/nnasync_test_no_such_file", 0, 64)


@pytest.mark.parametrize(
    "offset, size", [(0, 4097), (4096, 1), (1, 4096), (-1, 8), (0, 0), (0, -4), (0, 2**63)]
)
def test_a_region_beyond_its_file(shared: SharedMemory, file: File, offset: int, size: int) -> None:
    with refused(HTTPStatus.BAD_REQUEST, INVALID):
        shared.register("r", file.key, offset, size)


@pytest.mark.parametrize("offset, size", [(60, 8), (0, 65), (-8, 8), (8, -8), (2**62, 2**62)])
def test_a_place_beyond_its_region(
    shared: SharedMemory, either: File, offset: int, size: int
) -> None:
    shared.register("r", either.key, 16, 64)
    with refused(HTTPStatus.BAD_REQUEST, f"{INVALID} .* region: 'r'"):
        shared.view(RegionSlice("r", size, offset))


def test_an_unknown_region(shared: SharedMemory) -> None:
    with refused(HTTPStatus.NOT_FOUND, "Unable to find shared memory region: 'zz'"):
        shared.view(RegionSlice("zz", 8))


def test_a_file_that_was_shortened_is_refused_and_nobody_dies(
    shared: SharedMemory, either: File
) -> None:
    shared.register("r", either.key, 0, 4096)
    os.truncate(either.path, 100)
    place = RegionSlice("r", 8)
    for use in (lambda: shared.view(place), lambda: shared.write(place, b"12345678")):
        with refused(HTTPStatus.BAD_REQUEST, INVALID):
            use()
    assert either.path.stat().st_size == 100
    os.truncate(either.path, 4096)
    assert bytes(shared.view(place)) == bytes(8)


def test_a_file_that_has_no_name_any_more_is_still_there(
    shared: SharedMemory, either: File
) -> None:
    shared.register("r", either.key, 0, 4096)
    either.path.unlink()
    shared.write(RegionSlice("r", 4), b"abcd")
    assert bytes(shared.view(RegionSlice("r", 4))) == b"abcd"


def test_memory_stays_for_those_who_use_it(shared: SharedMemory, file: File) -> None:
    shared.register("r", file.key, 0, 4096)
    view = shared.view(RegionSlice("r", 8))
    again = shared.view(RegionSlice("r", 8))
    shared.unregister("r")
    shared.close()
    view[0] = 7
    assert again[0] == 7


def test_limits(file: File) -> None:
    shared = SharedMemory(1)
    shared.register("r", file.key, 0, 64)
    with refused(HTTPStatus.SERVICE_UNAVAILABLE, "the most that are allowed"):
        shared.register("s", file.key, 0, 64)
    shared.close()
    with refused(HTTPStatus.FORBIDDEN, "turned off"):
        SharedMemory(is_allowed=False).register("r", file.key, 0, 64)


def test_nothing_stays_open(shared: SharedMemory, either: File) -> None:
    before = open_descriptors()
    for _ in range(3):
        shared.register("r", either.key, 0, 4096)
        shared.unregister("r")
        with pytest.raises(ServingError):
            shared.register("r", either.key, 0, 5000)
    assert opened_since(before) == {}
