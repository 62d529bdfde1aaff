"""How connections to a device on another machine begin and end."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

import nnasync as nn
from nnasync._core.drivers.service.network_source import NetworkAddress, host_and_port
from nnasync.errors import DeviceDied, DeviceUnavailable, InvalidArgument
from nnasync.hal import DeviceStatus
from tests import certificates, rigs
from tests.network.distance import KEY, distant
from tests.network.wire import wired
from tests.service.rig import Slot

pytestmark = pytest.mark.anyio

SOON_S = 0.2
"""A connection that is silent for so long is given up, in tests of that."""


async def test_a_partition_of_the_network() -> None:
    """Nothing arrives, no connection ends: all that is pending is answered, each call once."""
    engine = rigs.gated()
    async with distant(engine) as there, wired(there.address) as wire:
        device = await nn.connect(wire.address, hang_after_s=SOON_S)
        prepared, slots = await device.prepare_model(rigs.doubler()), [Slot() for _ in range(3)]
        ended: list[Exception] = []

        async def attempt(slot: Slot) -> None:
            try:
                await prepared.execute(slot.request)
            except DeviceDied as error:
                ended.append(error)

        async with anyio.create_task_group() as group:
            for slot in slots:
                group.start_soon(attempt, slot)
            launched = await prepared.execute_fenced(Slot().request)
            await anyio.wait_all_tasks_blocked()
            wire.cut()
        assert len(ended) == 3
        assert "no sign of life for 0.2 s" in str(ended[0])
        assert isinstance(await rigs.failure(launched.fence), DeviceDied)
        assert await device.get_status() is DeviceStatus.OFFLINE
        with pytest.raises(DeviceDied, match="prepare it again"):
            await prepared.execute(slots[0].request)
        engine.gate.open_wide()
        wire.mend()
        again = await device.prepare_model(rigs.doubler())
        await again.execute(slots[0].request)
        assert slots[0].y.tolist() == (2 * rigs.ROW).tolist()
        await device.close()


async def test_a_connection_that_ends() -> None:
    engine = rigs.gated()
    async with distant(engine) as there, wired(there.address) as wire:
        device = await nn.connect(wire.address)
        prepared, slot = await device.prepare_model(rigs.doubler()), Slot()
        async with anyio.create_task_group() as group:
            attempt = await rigs.attempt(group, lambda: prepared.execute(slot.request))
            await wire.end()
        assert isinstance(attempt.error, DeviceDied)
        engine.gate.open_wide()
        await device.prepare_model(rigs.doubler())
        await device.close()


async def test_a_network_is_there_again() -> None:
    options = nn.Options(cores=2, inline_budget_us=0, competition_budget_ms=0, revive=True)
    async with distant() as there, wired(there.address) as wire:
        device = await nn.connect(wire.address)
        async with rigs.runtime(device, options=options) as runtime:
            net = await runtime.compile(rigs.doubler())
            await net(rigs.ROW)
            await wire.end()
            await device.lost
            with anyio.fail_after(rigs.GUARD_S):
                while True:
                    try:
                        assert (await net(rigs.ROW)).tolist() == (2 * rigs.ROW).tolist()
                        break
                    except nn.errors.DeviceError:
                        await anyio.lowlevel.checkpoint()
        await device.close()


async def test_two_machines_that_serve_the_same_device() -> None:
    async with distant() as one, distant(connecting={"called": "other"}) as other:
        assert (one.device.name, other.device.name) == (rigs.REFERENCE, "other")
        options = nn.Options(competition_budget_ms=0)
        async with rigs.runtime(one.device, other.device, options=options) as runtime:
            for name in (rigs.REFERENCE, "other"):
                async with await runtime.compile(rigs.doubler(), devices=[name]) as net:
                    assert (await net(rigs.ROW)).tolist() == (2 * rigs.ROW).tolist()
        async with distant() as third:
            with pytest.raises(InvalidArgument, match="the same name"):
                async with nn.open_runtime(devices=[one.device, third.device]):
                    pass


async def test_a_key_that_both_have(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(KEY + b"\n")
    file.chmod(0o600)
    async with distant(serving={"key": file}, connecting={"key": KEY}) as there:
        await there.device.prepare_model(rigs.doubler())
        for wrong in (None, b"another key, long enough"):
            with pytest.raises(DeviceUnavailable, match="another key"):
                await nn.connect(there.address, key=wrong)
        file.chmod(0o640)
        with pytest.raises(InvalidArgument, match="open to others"):
            await nn.connect(there.address, key=file)
    with pytest.raises(InvalidArgument, match="at least 16"):
        await nn.connect("tcp://127.0.0.1:1", key=b"short")


async def test_over_tls(tmp_path: Path) -> None:
    certificate, private = certificates.self_signed(tmp_path)
    serving = {"certificate": certificate, "private_key": private, "key": KEY}
    async with distant(serving=serving, connecting={"ca": certificate, "key": KEY}) as there:
        prepared, slot = await there.device.prepare_model(rigs.doubler()), Slot()
        for _ in range(3):
            await prepared.execute(slot.request)
        assert slot.y.tolist() == (2 * rigs.ROW).tolist()
        with pytest.raises(DeviceUnavailable, match="TLS"):
            await nn.connect(there.address, key=KEY)
        (tmp_path / "other").mkdir()
        other, _ = certificates.self_signed(tmp_path / "other")
        with pytest.raises(DeviceUnavailable, match="no encrypted connection"):
            await nn.connect(there.address, key=KEY, ca=other)


async def test_a_key_is_asked_of_who_is_on_the_network() -> None:
    async with rigs.runtime() as runtime:
        with pytest.raises(InvalidArgument, match="a key is needed"):
            await nn.serve(runtime.devices[0], "tcp://0.0.0.0:0")
    with pytest.raises(InvalidArgument, match="has a key"):
        await nn.connect("tcp://192.0.2.1:7007")


@pytest.mark.parametrize("address", ["tcp://", "tcp://host", "tcp://:7", "tcp://a:70000"])
async def test_what_is_no_address(address: str) -> None:
    with pytest.raises(InvalidArgument, match="no address"):
        await nn.connect(address)
    assert host_and_port("tcp://[::1]:70") == ("::1", 70)


async def test_an_address_that_does_not_answer_is_tried_later() -> None:
    now_s = 0.0
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        source = NetworkAddress(address, clock=lambda: now_s)
        for pause_s in (0.25, 0.5, 1.0, 2.0, 4.0, 4.0):
            with pytest.raises(DeviceUnavailable, match="no driver service"):
                source.open()
            now_s += pause_s - 0.01
            with pytest.raises(DeviceUnavailable, match=r"again in 0\.01 s"):
                source.open()
            now_s += 0.01


async def test_who_says_nothing_of_use_is_not_let_in() -> None:
    async with distant(serving={"key": KEY}, connecting={"key": KEY}) as there:

        def knock(data: bytes) -> bytes:
            with socket.create_connection(host_and_port(there.address)) as sock:
                sock.settimeout(rigs.GUARD_S)
                sock.sendall(data)
                answer = b""
                while more := _read(sock):
                    answer += more
                return answer

        assert await anyio.to_thread.run_sync(knock, b"GET / HTTP/1.1\r\n" * 4) == b""
        # The right greeting and a wrong proof: the service answers the greeting alone.
        answer = await anyio.to_thread.run_sync(knock, b"nnasync\x01" + bytes(32) + bytes(32))
        assert len(answer) == 40
        await there.device.prepare_model(rigs.doubler())


def _read(sock: socket.socket) -> bytes:
    try:
        return sock.recv(100)
    except ConnectionError:
        return b""


@pytest.mark.one_loop("A process of its own does not know the loop.")
async def test_the_command(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(KEY)
    key.chmod(0o600)
    command = ["device-service", "--device", rigs.REFERENCE, "--listen", "tcp://127.0.0.1:0"]
    # A test may block while a process starts.
    with subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-m", "nnasync", *command, "--key-file", str(key), "--cores", "1"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        line = await anyio.to_thread.run_sync(process.stdout.readline)
        assert line.startswith(f"{rigs.REFERENCE} listens at tcp://127.0.0.1:")
        device = await nn.connect(line.split()[-1], key=key)
        prepared, slot = await device.prepare_model(rigs.doubler()), Slot()
        await prepared.execute(slot.request)
        assert slot.y.tolist() == (2 * rigs.ROW).tolist()
        process.kill()
        process.wait()
        with pytest.raises(DeviceDied):
            await prepared.execute(slot.request)
        await device.close()
