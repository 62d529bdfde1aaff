"""The gRPC front, asked by Triton's own client: every call, streams, deadlines, refusals."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import nnasync as nn
from nnasync.serving import Limits, ModelSettings, ServeOptions
from nnasync.serving.server import ModelServer
from tests.serving.small_models import accumulator, ident, served

pytest.importorskip("grpc", reason="the extra serve is not installed")
pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")

import grpc
from tritonclient.grpc import aio
from tritonclient.utils import InferenceServerException

from nnasync.serving.grpc_front import open_grpc_front
from nnasync.serving.grpc_front.descriptors import message_class

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop("grpc.aio runs on asyncio")]

X = np.array([[1, -2, 3]], np.float32)


@contextlib.asynccontextmanager
async def clients(
    *models: nn.Model, options: ServeOptions | None = None, settings: ModelSettings | None = None
) -> AsyncIterator[tuple[Any, ModelServer, int]]:
    """A client of a server of these models, the server, and its port."""
    async with (
        served(*(models or (ident(), accumulator())), options=options, settings=settings) as server,
        open_grpc_front(server, port=0) as front,
        aio.InferenceServerClient(f"127.0.0.1:{front.port}") as client,
    ):
        with anyio.fail_after(30):
            yield client, server, front.port


def tensor(name: str, array: Any, datatype: str = "FP32") -> Any:
    found = aio.InferInput(name, list(array.shape), datatype)
    found.set_data_from_numpy(array)
    return found


def refused(code: grpc.StatusCode, text: str) -> pytest.RaisesExc[Any]:
    return pytest.RaisesExc(
        InferenceServerException, match=text, check=lambda error: error.status() == str(code)
    )


async def test_what_there_is() -> None:
    async with clients() as (client, _, _):
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("ident")
        assert not await client.is_model_ready("nope")
        assert not await client.is_model_ready("ident", "9")
        assert "sequence" in (await client.get_server_metadata()).extensions
        metadata = await client.get_model_metadata("ident")
        assert [(x.name, x.datatype, list(x.shape)) for x in metadata.inputs] == [
            ("x", "FP32", [1, 3])
        ]
        config = (await client.get_model_config("acc")).config
        assert config.name == "acc"
        assert config.HasField("sequence_batching")
        assert config.input[0].data_type == 11
        index = await client.get_model_repository_index()
        assert [(each.name, each.state) for each in index.models] == [
            ("acc", "READY"),
            ("ident", "READY"),
        ]
        with refused(grpc.StatusCode.NOT_FOUND, "Request for unknown model: 'nope' is not found"):
            await client.get_model_metadata("nope")


async def test_settings_and_what_is_not_there() -> None:
    async with clients() as (client, _, _):
        trace = (await client.get_trace_settings()).settings
        assert list(trace["trace_level"].value) == ["OFF"]
        assert await client.update_trace_settings(settings={"trace_rate": "1000"})
        log = (await client.update_log_settings({"log_info": True})).settings
        assert log["log_info"].bool_param is True
        assert log["log_format"].string_param == "default"
        assert not (await client.get_cuda_shared_memory_status()).regions
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "this server has none"):
            await client.register_cuda_shared_memory("r", b"eA==", 0, 8)
        await client.unregister_cuda_shared_memory("r")


async def test_an_inference() -> None:
    async with clients() as (client, server, _):
        answer = await client.infer(
            "ident", [tensor("x", X)], request_id="q", priority=1, timeout=5_000_000,
            parameters={"mine": "yes"},
        )  # fmt: skip
        assert answer.as_numpy("y").tolist() == X.tolist()
        assert answer.get_response().id == "q"
        statistics = await client.get_inference_statistics("ident")
        assert statistics.model_stats[0].inference_stats.success.count == 1
        assert [account.client for account in server.accounts.all()] == ["127.0.0.1"]


async def test_outputs_that_are_asked_for() -> None:
    async with clients() as (client, _, _):
        wanted = [aio.InferRequestedOutput("y", class_count=2)]
        answer = await client.infer("ident", [tensor("x", X)], outputs=wanted)
        assert answer.as_numpy("y").tolist() == [b"3.000000:2", b"1.000000:0"]
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "unexpected inference output 'zz'"):
            await client.infer("ident", [tensor("x", X)], outputs=[aio.InferRequestedOutput("zz")])


def values(model: str = "ident", **contents: Sequence[Any]) -> Any:
    """A request whose tensor is not raw."""
    request = message_class("ModelInferRequest")(model_name=model)
    each = request.inputs.add(name="x", datatype="FP32", shape=[1, 3])
    for name, content in contents.items():
        getattr(each.contents, name).extend(content)
    return request


async def test_values_that_are_not_raw() -> None:
    async with clients() as (_, _, port), _channel(port) as infer:
        answer = await infer(values(fp32_contents=[1, 2, 3]))
        assert np.frombuffer(answer.raw_output_contents[0], np.float32).tolist() == [1, 2, 3]


@contextlib.asynccontextmanager
async def _channel(port: int) -> AsyncIterator[Any]:
    """ModelInfer with messages made by hand."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=lambda message: (
                message if isinstance(message, bytes) else message.SerializeToString()
            ),
            response_deserializer=message_class("ModelInferResponse").FromString,
        )


def broken() -> list[Any]:
    both = values(fp32_contents=[1, 2, 3])
    both.raw_input_contents.append(bytes(12))
    too_many = values()
    too_many.raw_input_contents.extend([bytes(12), bytes(12)])
    short = values()
    short.raw_input_contents.append(bytes(8))
    half = values()
    half.inputs[0].datatype = "FP16"
    empty = values(fp32_contents=[1, 2, 3])
    empty.parameters["priority"].SetInParent()
    flag = values(fp32_contents=[1, 2, 3])
    flag.parameters["sequence_start"].int64_param = 1
    negative = values(fp32_contents=[1, 2, 3])
    negative.parameters["timeout"].int64_param = -1
    shape = values(fp32_contents=[1, 2, 3])
    shape.inputs[0].shape[:] = [2**62, 2**62]
    return [
        pytest.param(both, "must not be specified when using raw", id="both"),
        pytest.param(too_many, "raw_input_contents has 2 tensors", id="too_many"),
        pytest.param(short, "12", id="short"),
        pytest.param(half, "has to be in raw_input_contents", id="half"),
        pytest.param(empty, "has no value", id="empty"),
        pytest.param(flag, "boolean", id="flag"),
        pytest.param(negative, "unsigned", id="negative"),
        pytest.param(shape, "shape", id="shape"),
        pytest.param(values(fp32_contents=[1]), "Shape does not match", id="few"),
        pytest.param(values(), "Shape does not match", id="none"),
        pytest.param(b"\xff\xff", "failed to parse", id="bytes"),
    ]


@pytest.mark.parametrize("request_, text", broken())
async def test_requests_that_are_wrong(request_: Any, text: str) -> None:
    async with clients(ident()) as (client, _, port), _channel(port) as infer:
        with pytest.raises(grpc.aio.AioRpcError, match=text) as caught:
            await infer(request_)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert await client.is_server_live()


async def test_a_message_that_is_too_long() -> None:
    options = ServeOptions(limits=Limits(body_bytes=1000))
    async with clients(ident(), options=options) as (_, _, port), _channel(port) as infer:
        for compression in (None, grpc.Compression.Gzip):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await infer(bytes(100_000), compression=compression)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_stream_goes_on_behind_an_error() -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        for number, model in enumerate(("ident", "nope", "ident")):
            inputs = [tensor("x", X)]
            yield {"model_name": model, "inputs": inputs, "request_id": str(number)}

    async with clients() as (client, _, _):
        found: dict[str, Any] = {}
        async for result, error in client.stream_infer(requests()):
            if error is not None:
                found["error"] = error.message()
            else:
                response = result.get_response()
                assert response.parameters["triton_final_response"].bool_param
                found[response.id] = result.as_numpy("y").tolist()
        assert found == {
            "0": X.tolist(),
            "2": X.tolist(),
            "error": "Request for unknown model: 'nope' is not found",
        }


async def test_a_stream_ends_at_an_error_if_asked_to() -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "nope", "inputs": [tensor("x", X)]}
        await anyio.sleep_forever()

    async with clients() as (client, _, _):
        answers = client.stream_infer(requests(), headers={"triton_grpc_error": "true"})
        with pytest.raises(grpc.aio.AioRpcError, match="unknown model") as caught:
            async for _ in answers:
                pass
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_sequence_on_a_stream() -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        for value, flags in ((1, "s"), (2, ""), (3, ""), (4, "e"), (5, "")):
            yield {
                "model_name": "acc",
                "inputs": [tensor("x", np.array([[value]], np.float32))],
                "sequence_id": 10,
                "sequence_start": flags == "s",
                "sequence_end": flags == "e",
            }

    async with clients() as (client, server, _):
        sums, texts = [], []
        async for result, error in client.stream_infer(requests()):
            if error is None:
                sums.append(float(result.as_numpy("y")[0, 0]))
            else:
                texts.append(error.message())
        assert sums == [1, 3, 6, 10]
        assert texts == [
            "inference request for sequence 10 to model 'acc' must specify the START flag on the "
            "first request of the sequence"
        ]
        assert len(server.sequences) == 0


async def test_sequences_of_calls_by_number_and_by_name() -> None:
    async with clients() as (client, server, _):

        async def send(value: int, which: int | str, **flags: bool) -> float:
            x = tensor("x", np.array([[value]], np.float32))
            answer = await client.infer("acc", [x], sequence_id=which, **flags)
            return float(answer.as_numpy("y")[0, 0])

        assert await send(1, 5, sequence_start=True) == 1
        assert await send(10, "five", sequence_start=True) == 10
        assert await send(1, 5) == 2
        assert await send(10, "five", sequence_end=True) == 20
        assert len(server.sequences) == 1


async def test_clients_are_known_by_their_keys() -> None:
    options = ServeOptions(api_keys={"secret": "me"})
    async with clients(ident(), options=options) as (client, server, _):
        for headers in ({}, {"x-api-key": "wrong"}):
            with refused(grpc.StatusCode.UNAUTHENTICATED, "API key"):
                await client.infer("ident", [tensor("x", X)], headers=headers)
            with refused(grpc.StatusCode.UNAUTHENTICATED, "API key"):
                await client.get_model_metadata("ident", headers=headers)
        for headers in ({"x-api-key": "secret"}, {"authorization": "Bearer secret"}):
            await client.infer("ident", [tensor("x", X)], headers=headers)
        assert [account.client for account in server.accounts.all()] == ["me"]


async def test_the_health_service() -> None:
    async with (
        clients() as (_, server, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        kinds: dict[str, Any] = {
            "request_serializer": lambda service: message_class(
                "HealthCheckRequest", "grpc.health.v1"
            )(service=service).SerializeToString(),
            "response_deserializer": lambda data: message_class(
                "HealthCheckResponse", "grpc.health.v1"
            ).FromString(data).status,
        }  # fmt: skip
        check = channel.unary_unary("/grpc.health.v1.Health/Check", **kinds)
        assert [await check(""), await check("inference.GRPCInferenceService")] == [1, 1]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await check("nobody")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch", **kinds)("")
        assert await watch.read() == 1
        server.is_ready = False
        assert await watch.read() == 2
        watch.cancel()


async def test_a_port_that_is_taken() -> None:
    async with served(ident()) as server, open_grpc_front(server, port=0) as front:
        with pytest.raises(nn.InvalidArgument, match="cannot listen"):
            async with open_grpc_front(server, port=front.port):
                pass


async def test_stopping_answers_what_is_in_flight_and_refuses_what_comes() -> None:
    async with (
        served(ident()) as server,
        open_grpc_front(server, port=0) as front,
        aio.InferenceServerClient(f"127.0.0.1:{front.port}") as client,
    ):
        await client.infer("ident", [tensor("x", X)])
        await front.stop(1)
        with refused(grpc.StatusCode.UNAVAILABLE, "connect|GOAWAY|closed"):
            await client.infer("ident", [tensor("x", X)])


async def test_a_front_that_is_cancelled_lets_go_of_its_port() -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "ident", "inputs": [tensor("x", X)]}
        await anyio.sleep_forever()

    async with served(ident()) as server:
        port = 0
        with anyio.CancelScope() as scope:
            async with (
                open_grpc_front(server, port=0) as front,
                aio.InferenceServerClient(f"127.0.0.1:{front.port}") as client,
            ):
                port = front.port
                async for _ in client.stream_infer(requests()):
                    scope.cancel()
        assert scope.cancelled_caught
        async with open_grpc_front(server, port=port) as front:
            assert front.port == port


async def test_tls(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    make_certificate(certificate, key)
    async with served(ident()) as server:
        async with (
            open_grpc_front(server, port=0, certificate=certificate, key=key) as front,
            aio.InferenceServerClient(
                f"localhost:{front.port}", ssl=True, root_certificates=str(certificate)
            ) as client,
        ):
            assert await client.is_server_live()
            async with aio.InferenceServerClient(f"localhost:{front.port}") as plain:
                with pytest.raises(InferenceServerException):
                    await plain.is_server_live(client_timeout=5)
        with pytest.raises(nn.InvalidArgument, match="TLS"):
            async with open_grpc_front(server, port=0, certificate=tmp_path / "no", key=key):
                pass
        garbage = tmp_path / "garbage.pem"
        garbage.write_text("no certificate")
        with pytest.raises(nn.InvalidArgument, match="cannot listen"):
            async with open_grpc_front(server, port=0, certificate=garbage, key=key):
                pass
        with pytest.raises(nn.InvalidArgument, match="needs the key"):
            async with open_grpc_front(server, port=0, certificate=certificate):
                pass


def make_certificate(certificate: Path, key: Path) -> None:
    """A certificate of this machine that vouches for itself."""
    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(secret.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(secret, hashes.SHA256())
    )
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key.write_bytes(
        secret.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


async def test_shared_memory_that_is_turned_off() -> None:
    options = ServeOptions(poll_s=0, shared_memory=False)
    async with clients(ident(), options=options) as (client, _, _):
        assert "system_shared_memory" not in (await client.get_server_metadata()).extensions
        with refused(grpc.StatusCode.PERMISSION_DENIED, "turned off"):
            await client.register_system_shared_memory("r", "/r", 8)


def test_it_runs_on_uvloop_and_not_on_trio() -> None:
    async def ask() -> None:
        async with clients(ident()) as (client, _, _):
            answer = await client.infer("ident", [tensor("x", X)])
            assert answer.as_numpy("y").tolist() == X.tolist()

    async def refuse() -> None:
        async with served(ident()) as server:
            with pytest.raises(nn.BadState, match="asyncio and uvloop only"):
                async with open_grpc_front(server, port=0):
                    pass

    anyio.run(ask, backend="asyncio", backend_options={"use_uvloop": True})
    anyio.run(refuse, backend="trio")
