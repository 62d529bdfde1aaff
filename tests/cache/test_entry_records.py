"""Records, their signatures and the headers of files."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync._core.cache.entry_records import (
    FORMAT,
    HEADER_BYTES,
    FileRecord,
    Record,
    check_record,
    decode,
    digest_of,
    encode,
    file_header,
    sign,
)
from nnasync._core.cache.keys import FileKind
from nnasync._core.cache.outcome import Rejected
from tests.cache.entries import KEY, MODEL

FILE = FileRecord(10, b"d" * 32)
RECORD = Record(
    format=FORMAT,
    library_version=KEY.library_version,
    device_name=KEY.device_name,
    device_version=KEY.device_version,
    model_digest=MODEL,
    generation=b"g" * 16,
    encrypted=False,
    model=(FILE,),
    data=(FILE, FILE),
)
files = st.lists(
    st.builds(
        FileRecord,
        size=st.integers(0, 2**63 - 1),
        digest=st.binary(max_size=32),
        nonce=st.sampled_from([b"", b"n" * 12]),
    ),
    max_size=32,
).map(tuple)
records = st.builds(
    Record,
    format=st.integers(0, 2**31),
    library_version=st.text(),
    device_name=st.text(),
    device_version=st.text(),
    model_digest=st.binary(),
    generation=st.binary(min_size=16, max_size=16),
    encrypted=st.booleans(),
    model=files,
    data=files,
)


@given(records)
def test_a_record_survives_encoding(record: Record) -> None:
    assert decode(encode(record)) == record


@given(st.binary())
def test_bytes_that_are_no_record_are_rejected(data: bytes) -> None:
    try:
        assert encode(decode(data))
    except Rejected as error:
        assert "record" in str(error)


@given(st.integers(0, len(encode(RECORD)) * 8 - 1))
def test_a_damaged_record_is_rejected_or_another(bit: int) -> None:
    data = bytearray(encode(RECORD))
    data[bit // 8] ^= 1 << bit % 8
    try:
        assert decode(bytes(data)) != RECORD
    except Rejected:
        pass


@pytest.mark.parametrize(
    "change",
    [
        {"generation": b"short"},
        {"model": (FILE,) * 33},
        {"data": (FILE,) * 33},
        {"model": (FileRecord(-1, b""),)},
        {"model": (FileRecord(2**63, b""),)},
        {"data": (FileRecord(1, b"", b"nonce"),)},
    ],
)
def test_a_record_that_nobody_wrote_is_rejected(change: dict[str, Any]) -> None:
    with pytest.raises(Rejected, match="could have been written"):
        decode(encode(msgspec.structs.replace(RECORD, **change)))


@pytest.mark.parametrize(
    "change",
    [
        {"secret": b"t"},
        {"directory": b"/elsewhere"},
        {"token": b"u"},
        {"data": b"other"},
        {"directory": b"/ft", "token": b""},
    ],
)
def test_a_signature_binds_everything(change: dict[str, bytes]) -> None:
    place = {"secret": b"s", "directory": b"/f", "token": b"t", "data": b"record"}
    assert sign(**(place | change)) != sign(**place)
    assert sign(**place) == sign(**place)


def test_a_header_tells_every_file_from_every_other() -> None:
    headers = {
        file_header(generation, kind, index, FileRecord(size, b"", nonce))
        for generation in (b"g" * 16, b"h" * 16)
        for kind in FileKind
        for index in (0, 31)
        for size in (0, 2**63 - 1)
        for nonce in (b"", b"n" * 12)
    }
    assert len(headers) == 32
    assert {len(header) for header in headers} == {HEADER_BYTES}


@given(st.lists(st.binary()), st.sampled_from(FileKind))
def test_a_digest_does_not_depend_on_the_cuts(parts: list[bytes], kind: FileKind) -> None:
    one, other = digest_of(kind), digest_of(kind)
    for part in parts:
        one.update(part)
    other.update(b"".join(parts))
    assert one.digest() == other.digest()


def test_a_record_that_fits_is_accepted() -> None:
    check_record(RECORD, KEY, MODEL, counts=(1, 2), encrypt=False)
    check_record(RECORD, KEY, MODEL, counts=None, encrypt=False)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": FORMAT + 1}, f"other cache format {FORMAT}, was {FORMAT + 1}"),
        ({"library_version": "0.0"}, "other nnasync version 0.1, was 0.0"),
        ({"device_name": "old"}, "other device device, was old"),
        ({"device_version": "0.9"}, "other driver version 1.0, was 0.9"),
        ({"model_digest": b"x"}, "the token is of another model"),
        ({"data": (FILE,)}, "wants 1 model and 2 data cache files, the entry has 1 and 1"),
        ({"encrypted": True}, "the entry is encrypted"),
    ],
)
def test_a_record_that_does_not_fit_says_why(change: dict[str, Any], reason: str) -> None:
    record = msgspec.structs.replace(RECORD, **change)
    with pytest.raises(Rejected, match=reason):
        check_record(record, KEY, MODEL, counts=(1, 2), encrypt=False)


def test_a_plain_entry_is_not_taken_for_an_encrypted_one() -> None:
    with pytest.raises(Rejected, match="not encrypted"):
        check_record(RECORD, KEY, MODEL, counts=None, encrypt=True)
