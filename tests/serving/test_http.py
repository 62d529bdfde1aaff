"""The endpoints over HTTP, as clients of Triton and KServe use them."""

from __future__ import annotations

import gzip
import json
import logging
import threading
import zlib
from multiprocessing import shared_memory
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

import nnasync as nn
from nnasync.serving import Limits, ServeOptions, http_app
from nnasync.serving.json_protocol import decoded
from tests.rigs import ROW, calculator, doubler
from tests.serving.rig import INFER, QUIET, ROW_JSON, body, browsing, outcomes, serving

pytest.importorskip("starlette", reason="the extra serve is not installed")

from nnasync.serving import http

pytestmark = pytest.mark.anyio

BINARY = {"name": "x", "shape": [1, 4], "datatype": "FP32", "parameters": {"binary_data_size": 16}}


def binary(request: dict[str, Any], *pieces: bytes) -> dict[str, Any]:
    """The arguments of a post of a request with bytes behind its JSON."""
    head = json.dumps(request).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    return {"content": head + b"".join(pieces), "headers": headers}


async def test_json_in_and_out() -> None:
    async with serving() as server, browsing(server) as client:
        answer = await client.post(INFER, json=body(id="abc", parameters={"foo": "bar"}))
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        assert answer.text == (
            '{"id":"abc","model_name":"doubler","model_version":"1","outputs":[{"name":"y",'
            '"datatype":"FP32","shape":[1,4],"data":[2.0,4.0,6.0,8.0]}]}'
        )
        assert outcomes(server) == {"completed": 1}


async def test_binary_in_and_out() -> None:
    async with serving() as server, browsing(server) as client:
        request = {"inputs": [BINARY], "parameters": {"binary_data_output": True}}
        answer = await client.post(INFER, **binary(request, ROW.tobytes()))
        length = int(answer.headers["inference-header-content-length"])
        assert answer.headers["content-type"] == "application/octet-stream"
        told = json.loads(answer.content[:length])
        assert told["outputs"][0]["parameters"] == {"binary_data_size": 16}
        assert answer.content[length:] == (2 * ROW).tobytes()


async def test_a_raw_request_is_its_only_input() -> None:
    async with serving() as server, browsing(server) as client:
        headers = {"Inference-Header-Content-Length": "0"}
        answer = await client.post(INFER, content=ROW.tobytes(), headers=headers)
        assert answer.content.endswith((2 * ROW).tobytes())


@pytest.mark.parametrize(
    ("coding", "pack", "unpack"),
    [("gzip", gzip.compress, gzip.decompress), ("deflate", zlib.compress, zlib.decompress)],
)
async def test_packed_bodies(coding: str, pack: Any, unpack: Any) -> None:
    async with serving() as server, browsing(server) as client:
        content = pack(json.dumps(body()).encode())
        headers = {"Content-Encoding": coding, "Accept-Encoding": coding}
        answer = await client.post(INFER, content=content, headers=headers)
        assert answer.headers["content-encoding"] == coding
        assert answer.json()["outputs"][0]["data"] == [2, 4, 6, 8]  # httpx has unpacked it
        assert (await client.post(INFER, content=content[:-9], headers=headers)).status_code == 400


async def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    limits = ServeOptions(poll_s=0, limits=Limits(body_bytes=1 << 16))
    async with serving(options=limits) as server, browsing(server) as client:
        content = gzip.compress(b" " * (8 << 20))
        answer = await client.post(INFER, content=content, headers={"Content-Encoding": "gzip"})
        assert answer.status_code == 413


async def test_classes_have_labels_where_there_are_some() -> None:
    labels = {"y": ["one", "two", "three"]}
    async with serving(labels=labels) as server, browsing(server) as client:
        outputs = [{"name": "y", "parameters": {"classification": 3}}]
        answer = await client.post(INFER, json=body(outputs=outputs))
        (output,) = answer.json()["outputs"]
        assert output["data"] == ["8.000000:3", "6.000000:2:three", "4.000000:1:two"]
        assert output["datatype"] == "BYTES"


async def test_outputs_that_are_asked_for() -> None:
    async with serving(models=(calculator(),)) as server, browsing(server) as client:
        inputs = [{**ROW_JSON, "name": name} for name in ("b", "a")]
        place = "/v2/models/calculator/infer"
        answer = await client.post(place, json={"inputs": inputs, "outputs": [{"name": "product"}]})
        assert [each["name"] for each in answer.json()["outputs"]] == ["product"]
        assert answer.json()["outputs"][0]["data"] == [1, 4, 9, 16]


WRONG = [
    ({"inputs": []}, 400, "expected 1 inputs but got 0 inputs for model 'doubler'."),
    ({}, 400, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
    (body(outputs=[{"name": "zz"}]), 400, "unexpected inference output 'zz' for model 'doubler'"),
    ({"inputs": [{**ROW_JSON, "name": "q"}]}, 400, "unexpected inference input 'q' for model"),
    ({"inputs": [{**ROW_JSON, "datatype": "INT32"}]}, 400,
     "inference input 'x' data-type is 'INT32', but model 'doubler' expects 'FP32'"),
    ({"inputs": [{**ROW_JSON, "data": [1, 2]}]}, 400,
     "Unable to parse 'data': Shape does not match true shape of 'data' field"),
    ({"inputs": [{**ROW_JSON, "data": ["a", 2, 3, 4]}]}, 400,
     "Unable to parse 'data': attempt to access JSON non-number as double"),
    ({"inputs": [{**ROW_JSON, "shape": [4]}]}, 400,
     "unexpected shape for input 'x' for model 'doubler'. Expected [1,4], got [4]."),
    ({"inputs": [BINARY]}, 400,
     "unexpected size for input 'x', expecting 16 additional bytes for model 'doubler'"),
    ({"inputs": [{**ROW_JSON, "data": None, "parameters": {"shared_memory_region": "zz",
                                                           "shared_memory_byte_size": 16}}]},
     400, "its data elsewhere"),
    ({"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "parameters": {
        "shared_memory_region": "zz", "shared_memory_byte_size": 16}}]},
     404, "Unable to find shared memory region: 'zz'"),
    (body(parameters={"priority": -1}), 400, "parameter 'priority' must be an unsigned integer"),
    (body(parameters={"timeout": "soon"}), 400, "parameter 'timeout' must be an unsigned integer"),
    (body(parameters={"sequence_id": 5}), 400, "carries no state"),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "status", "text"), WRONG)
async def test_wrong_requests(request_: dict[str, Any], status: int, text: str) -> None:
    async with serving() as server, browsing(server) as client:
        answer = await client.post(INFER, json=request_)
        assert answer.status_code == status
        assert text in answer.json()["error"]


@pytest.mark.parametrize("size", [4, 100_000])
async def test_large_json_is_read_in_a_thread(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    def noted(*arguments: Any) -> Any:
        threads.append(threading.get_ident())
        return decoded(*arguments)

    monkeypatch.setattr(http, "decoded", noted)
    tensor = {"name": "x", "shape": [1, size], "datatype": "FP32", "data": [1.5] * size}
    async with serving() as server, browsing(server) as client:
        answer = await client.post(INFER, json={"inputs": [tensor]})
        assert answer.status_code == (200 if size == 4 else 400)
        assert (threads == [threading.get_ident()]) is (size == 4)


async def test_wrong_bytes() -> None:
    async with serving() as server, browsing(server) as client:
        request = {"inputs": [BINARY]}
        for arguments, text in (
            (binary(request, b"abcd"), "expecting 12 additional bytes for model 'doubler'"),
            (binary(request, b"x" * 17), "unexpected additional input data for model 'doubler'"),
            ({"content": b"{bad"}, "failed to parse the request JSON buffer"),
            ({"content": b"[" * 100_000}, "failed to parse"),
            ({"content": b"{}", "headers": {"Inference-Header-Content-Length": "99999"}},
             "inference header size should be in range (0, 2), got: 99999"),
        ):  # fmt: skip
            answer = await client.post(INFER, **arguments)
            assert (answer.status_code, text in answer.json()["error"]) == (400, True), answer.text
        br = await client.post(INFER, content=b"x", headers={"Content-Encoding": "br"})
        assert (br.status_code, br.json()) == (501, {"error": "Unsupported compression type"})


async def test_what_is_not_there() -> None:
    async with serving() as server, browsing(server) as client:
        for path, status, text in (
            ("/v2/models/nope", 404, "Request for unknown model: 'nope' is not found"),
            ("/v2/models/doubler/versions/7", 404,
             "Request for unknown model: 'doubler' version 7 is not found"),
            ("/v2/models/nope/ready", 400, "Model version not ready"),
            ("/v2/models/nope/stats", 400, "requested model 'nope' is not available"),
            ("/v3", 404, "Not Found"),
            ("/v2/models", 404, "Not Found"),
            (INFER, 405, "Method Not Allowed"),
        ):  # fmt: skip
            answer = await client.get(path)
            assert (answer.status_code, answer.json()) == (status, {"error": text})
        answer = await client.post("/v2/models/nope/infer", json=body())
        assert answer.json() == {"error": "Request for unknown model: 'nope' is not found"}
        assert outcomes(server, "(unknown)", "") == {"failed": 1}
        assert (await client.post("/v2/health/live")).status_code == 405


async def test_health_metadata_and_settings() -> None:
    async with serving() as server, browsing(server) as client:
        assert (await client.get("/v2/health/live")).json() == {"live": True}
        assert (await client.get("/v2/health/ready")).json() == {"ready": True}
        assert "binary_tensor_data" in (await client.get("/v2")).json()["extensions"]
        found = (await client.get("/v2/models/doubler")).json()
        assert found == {
            "name": "doubler",
            "versions": ["1"],
            "platform": "nnasync",
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4]}],
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 4]}],
        }
        config = (await client.get("/v2/models/doubler/config")).json()
        assert config["input"][0]["data_type"] == "TYPE_FP32"
        index = await client.post("/v2/repository/index")
        assert index.json() == [{"name": "doubler", "version": "1", "state": "READY"}]
        trace = (await client.get("/v2/trace/setting")).json()
        assert trace["trace_level"] == ["OFF"]
        refused = await client.post("/v2/trace/setting", json={"trace_file": "/etc/passwd"})
        assert refused.status_code == 400
        log = await client.post("/v2/logging", json={"bogus": 0})
        assert log.json()["log_verbose_level"] == 0
        server.is_ready = False
        assert (await client.get("/v2/health/ready")).status_code == 400


async def test_statistics_have_all_keys_from_the_beginning() -> None:
    async with serving() as server, browsing(server) as client:
        (before,) = (await client.get("/v2/models/stats")).json()["model_stats"]
        assert before["batch_stats"] == []
        await client.post(INFER, json=body())
        (after,) = (await client.get("/v2/models/doubler/stats")).json()["model_stats"]
        assert set(before) == set(after)
        assert set(before["inference_stats"]) == set(after["inference_stats"])
        assert after["inference_count"] == after["inference_stats"]["success"]["count"] == 1
        (batch,) = after["batch_stats"]
        assert batch["compute_infer"]["ns"] > 0


async def test_metrics_add_up_and_have_the_names_of_triton() -> None:
    async with serving() as server, browsing(server) as client:
        for _ in range(3):
            await client.post(INFER, json=body())
        await client.post(INFER, json=body(outputs=[{"name": "zz"}]))
        text = (await client.get("/metrics")).text
        assert 'nv_inference_request_success{model="doubler",version="1"} 3' in text
        failed = 'nv_inference_request_failure{model="doubler",reason="OTHER",version="1"} 1'
        assert failed in text
        own = 'nnasync_serving_requests_total{client="127.0.0.1",model="doubler",version="1"} 4'
        assert own in text


async def test_keys_name_clients() -> None:
    options = ServeOptions(poll_s=0, api_keys={"secret": "ann"})
    async with serving(options=options) as server, browsing(server) as client:
        assert (await client.get("/v2/health/live")).status_code == 200
        for headers in ({}, {"X-API-Key": "other"}, {"Authorization": "Bearer other"}):
            for path in (INFER, "/v2/repository/index"):
                answer = await client.post(path, json=body(), headers=headers)
                assert answer.status_code == 401
        for headers in ({"X-API-Key": "secret"}, {"Authorization": "Bearer secret"}):
            assert (await client.post(INFER, json=body(), headers=headers)).status_code == 200
        assert {each.client for each in server.accounts.all()} == {"ann"}


async def test_a_host_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from starlette.datastructures import URL
    from starlette.requests import Request

    # Older releases of Starlette make this URL of the header "Host: x/v2/health/live?".
    told = property(lambda request: URL("http://x/v2/health/live?/metrics"))
    monkeypatch.setattr(Request, "url", told)
    options = ServeOptions(poll_s=0, api_keys={"secret": "ann"})
    async with serving(options=options) as server, browsing(server) as client:
        headers = {"Host": "x/v2/health/live?"}
        assert (await client.get("/metrics", headers=headers)).status_code == 401
        answer = await client.post("/v2/repository/index", headers=headers)
        assert answer.status_code == 401


@pytest.mark.parametrize("prefix", ["", "/serve", "/a/b"])
async def test_it_is_mounted_under_a_prefix(prefix: str) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    options = ServeOptions(poll_s=0, api_keys={"secret": "ann"})
    async with serving(options=options) as server:
        app = Starlette(routes=[Mount(prefix or "/", http_app(server))])
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            assert (await client.get(f"{prefix}/v2/health/live")).status_code == 200
            assert (await client.post(f"{prefix}{INFER}", json=body())).status_code == 401
            assert (await client.get(f"{prefix}/v2/models/doubler")).status_code == 401
            headers = {"X-API-Key": "secret"}
            answer = await client.post(f"{prefix}{INFER}", json=body(), headers=headers)
            assert answer.status_code == 200


async def test_what_is_beyond_a_limit() -> None:
    limits = Limits(body_bytes=4096, json_bytes=2048, tensors=2, parameters=2, text_bytes=10)
    options = msgspec.structs.replace(QUIET, limits=limits)
    async with serving(options=options) as server, browsing(server) as client:
        for request in (
            body(id="x" * 11),
            body(parameters={"a": 1, "b": 2, "c": 3}),
            body(parameters={"a": "x" * 11}),
            {"inputs": [ROW_JSON] * 3},
        ):
            assert (await client.post(INFER, json=request)).status_code == 413
        assert (await client.post(INFER, content=b" " * 2049)).status_code == 413
        assert (await client.post(INFER, content=b" " * 4097)).status_code == 413


async def test_floats_of_two_bytes() -> None:
    datatypes = {"x": "BF16", "y": "FP16"}
    async with serving(datatypes=datatypes) as server, browsing(server) as client:
        halves = (ROW.view(np.uint32) >> 16).astype(np.uint16)
        told = {"name": "x", "shape": [1, 4], "datatype": "BF16"}
        request = {"inputs": [{**told, "parameters": {"binary_data_size": 8}}],
                   "parameters": {"binary_data_output": True}}  # fmt: skip
        answer = await client.post(INFER, **binary(request, halves.tobytes()))
        assert answer.content.endswith((2 * ROW).astype(np.float16).tobytes())
        in_json = await client.post(INFER, json={"inputs": [{**told, "data": [1, 2, 3, 4]}]})
        assert "sending BF16 data via JSON is not supported" in in_json.json()["error"]


async def test_what_json_cannot_carry_is_refused_and_counted_as_failed() -> None:
    async with serving(datatypes={"y": "FP16"}) as server, browsing(server) as client:
        answer = await client.post(INFER, json=body())
        assert answer.status_code == 400
        assert "sending FP16 data via JSON is not supported" in answer.json()["error"]
        assert outcomes(server) == {"failed": 1}
    async with serving() as server, browsing(server) as client:
        huge = {**ROW_JSON, "data": [3e38, 0, 0, 0]}
        answer = await client.post(INFER, json={"inputs": [huge], "id": "null"})
        assert answer.status_code == 400
        assert "output 'y' has values that are infinite or no numbers" in answer.json()["error"]
        fine = await client.post(INFER, json=body(id="null"))
        assert fine.json()["id"] == "null"
        assert outcomes(server) == {"failed": 1, "completed": 1}


@pytest.mark.parametrize("key", ["schl\u00fcssel", " ann", "ann\n", "\x00"])
async def test_keys_that_no_header_can_carry_are_refused_at_the_start(key: str) -> None:
    with pytest.raises(nn.InvalidArgument, match="the API key of 'ann' cannot be sent"):
        ServeOptions(api_keys={key: "ann"})


async def test_clients_with_keys_have_regions_of_their_own() -> None:
    options = ServeOptions(poll_s=0, api_keys={"a": "ann", "b": "bob"})
    ann, bob = ({"x-api-key": key} for key in "ab")
    memory = shared_memory.SharedMemory(create=True, size=64)
    place = "/v2/systemsharedmemory"
    told = {"key": f"/{memory.name}", "byte_size": 64}
    inputs = {**BINARY, "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 16}}
    try:
        async with serving(options=options) as server, browsing(server) as client:

            async def ask(path: str, who: dict[str, str], json: object) -> httpx.Response:
                return await client.post(path, headers=who, json=json)

            assert (await ask(f"{place}/region/r/register", ann, told)).status_code == 200
            assert (await ask(f"{place}/region/r/register", bob, told)).status_code == 500
            assert (await ask(f"{place}/unregister", bob, {})).status_code == 200
            assert (await client.get(f"{place}/status", headers=bob)).json() == []
            assert len((await client.get(f"{place}/status", headers=ann)).json()) == 1
            assert (await ask(INFER, bob, {"inputs": [inputs]})).status_code == 404
            assert (await ask(INFER, ann, {"inputs": [inputs]})).status_code == 200
            assert (await ask(f"{place}/region/r/unregister", ann, {})).status_code == 200
            assert (await ask(f"{place}/region/r/register", bob, told)).status_code == 200
    finally:
        memory.close()
        memory.unlink()


@pytest.mark.parametrize(("is_allowed", "status"), [(False, 403), (True, 200)])
async def test_the_log_is_changed_where_that_is_allowed(is_allowed: bool, status: int) -> None:
    level = logging.getLogger("nnasync").level
    options = ServeOptions(poll_s=0, allow_settings=is_allowed)
    try:
        async with serving(options=options) as server, browsing(server) as client:
            assert (await client.post("/v2/logging", json={"log_info": True})).status_code == 200
            answer = await client.post("/v2/logging", json={"log_error": False})
            assert answer.status_code == status
            assert (await client.get("/v2/logging")).json()["log_error"] is not is_allowed
    finally:
        logging.getLogger("nnasync").setLevel(level)


async def test_nothing_is_served_that_does_not_fit_its_settings() -> None:
    for settings in ({"labels": {"q": ["a"]}}, {"max_batch_size": 4}, {"datatypes": {"q": "FP16"}}):
        with pytest.raises(nn.InvalidArgument):
            async with serving(models=(doubler(),), **settings):
                pass
