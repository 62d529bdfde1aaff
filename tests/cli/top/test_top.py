"""`nnasync top`."""

from __future__ import annotations

import anyio
import anyio.to_thread
import msgspec
import pytest

from nnasync.cli import main
from nnasync.cli.top import watch
from nnasync.tracing import monitored
from nnasync.tracing.endpoint import serve_metrics
from tests import rigs


@pytest.fixture(autouse=True)
def _folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("r")))


def test_nobody_shows_himself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once", "--interval", "0.05"]) == 1
    assert "nnasync.tracing.monitored" in capsys.readouterr().out


@pytest.mark.anyio
async def test_programs_that_show_themselves_are_seen(capsys: pytest.CaptureFixture[str]) -> None:
    async with rigs.runtime() as rt, monitored(rt):
        net = await rt.compile(rigs.doubler(), name="doubler")
        once = ["top", "--once", "--interval", "0.05"]
        with anyio.fail_after(rigs.GUARD_S):
            assert await anyio.to_thread.run_sync(main, once) == 0
            assert await anyio.to_thread.run_sync(main, [*once, "--json"]) == 0
        told = capsys.readouterr().out
        assert "doubler" in told
        (seen,) = msgspec.json.decode(told.splitlines()[-1]).values()
        assert seen["networks"][0]["device"] == "nnasync-reference"
        await net.aclose()


@pytest.mark.anyio
async def test_what_comes_and_goes_between_looks_is_left_out() -> None:
    async with rigs.runtime() as rt:
        seen = watch([], lambda: None)
        with anyio.fail_after(rigs.GUARD_S):
            assert await anyio.to_thread.run_sync(next, seen) == {}
            async with monitored(rt):
                assert await anyio.to_thread.run_sync(next, seen) == {}
                assert len(await anyio.to_thread.run_sync(next, seen)) == 1
            assert await anyio.to_thread.run_sync(next, seen) == {}


@pytest.mark.anyio
async def test_addresses_may_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    async with rigs.runtime() as rt, serve_metrics(rt) as endpoint:
        once = ["top", "--once", "--interval", "0.05", "--url", endpoint.url]
        with anyio.fail_after(rigs.GUARD_S):
            assert await anyio.to_thread.run_sync(main, once) == 0
    assert endpoint.url in capsys.readouterr().out
    assert main(once) == 1
    assert "does not answer" in capsys.readouterr().err


def test_intervals_are_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["top", "--interval", "0"])
    assert "0.05 to 3600" in capsys.readouterr().err
