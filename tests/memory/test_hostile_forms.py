"""What a client says of its memory is hostile: it is mapped within its bounds, or refused."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync._core.wire.messages import OfferModel, PoolForm, decode, encode
from nnasync._core.wire.model_transfer import Offer, model_of, pool_of
from nnasync.errors import GeneralFailure, InvalidArgument
from nnasync.memory import IMAGE, ImageFormat, ImageLayout, Pool, Unusable
from tests.conftest import open_descriptors, opened_since
from tests.memory.handles import dense

SIZE = 8192

numbers = st.one_of(st.integers(-2, 200), st.integers(4000, 9000), st.integers(-(2**63), 2**63 - 1))
layouts = st.builds(ImageLayout, st.sampled_from(ImageFormat), numbers, numbers, numbers)
forms = st.builds(
    PoolForm,
    st.sampled_from(["ashmem", "mmap_fd", "hardware_buffer_blob", IMAGE, "disk", ""]),
    numbers,
    numbers,
    st.booleans(),
    st.one_of(st.none(), layouts),
)


@pytest.fixture(scope="module")
def fd() -> Iterator[int]:
    pool = Pool.allocate(SIZE)
    pool.view[:] = bytes(np.arange(SIZE, dtype=np.uint8))
    yield pool.fd
    pool.close()


@given(forms, st.booleans(), st.booleans())
def test_a_form_of_memory(fd: int, form: PoolForm, copies: bool, sealed: bool) -> None:
    traveled = decode(encode(form), PoolForm)
    assert traveled == form
    try:
        pool = pool_of(traveled, fd, copies=copies, sealed=sealed)
    except GeneralFailure:
        return
    with pool:
        assert pool.name == form.kind
        assert 0 <= form.offset <= form.offset + pool.size <= SIZE
        assert pool.view[0] == form.offset % 256
        assert pool.view[-1] == (form.offset + form.size - 1) % 256
        if pool.image_layout is not None:
            assert sum(plane.size for plane in pool.planes) <= pool.size


def test_descriptors_that_a_form_does_not_account_for() -> None:
    """Operand values without a descriptor are no model; refused pools take none."""
    offer = Offer(dense().model)
    message = offer.message(1, 1)
    assert len(offer.fds) == 1
    missing = PoolForm("ashmem", 4, 0, False, None, "lost")
    with pytest.raises(InvalidArgument, match="lost"):
        model_of(OfferModel(1, 1, message.form, missing, ()), (), trusts=False)
    model = model_of(OfferModel(1, 1, message.form, b"", (missing,)), (), trusts=False)
    (pool,) = model.pools
    assert isinstance(pool, Unusable)
    with pytest.raises(GeneralFailure, match="lost"):
        pool.view  # noqa: B018 - it raises


def test_a_pool_that_cannot_be_handed_on_is_sent_as_that() -> None:
    closed = Pool.allocate(4096)
    closed.close()
    before = open_descriptors()
    offer = Offer(dense().with_constants(closed))
    (form,) = offer.message(1, 1).pools
    assert (form.kind, form.size, offer.fds) == ("ashmem", 4096, [])
    assert "closed" in form.refusal
    assert opened_since(before) == {}
