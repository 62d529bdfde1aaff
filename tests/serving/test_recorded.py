"""Requests recorded from a real Triton: our answers have the same status and the same structure.

What differs on purpose is listed here, with the reason.
"""

from __future__ import annotations

import ast
import asyncio
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import nnasync as nn
from nnasync.hal import OperandType, OperationType
from nnasync.kernels.operation import Tensor
from nnasync.serving import ModelServer, ServeOptions
from nnasync.serving.shared_memory import FOLDER
from tests.serving.rig import browsing
from tests.serving.small_models import accumulator

OTHER_STATUS = {
    "empty object": (500, 400),
    "bad json": (500, 400),
    "too few elements": (500, 400),
    "too many elements": (500, 400),
    "string in data": (500, 400),
}
"""What a client does wrong is told as that: recorded, ours."""
OTHER_TEXT = {"binary without header"}
"""Bytes behind JSON that no header announces are told as that."""
SKIPPED = {
    "empty body": "a model of ours has no results for a tensor without elements",
    "model error": "a model of ours does not fail at a negative number",
}
WITHOUT_NAME = {
    "/v2/models/ident/generate": "generate endpoints are not there",
    "/v2/repository/models/acc/unload": "the index says UNLOADING for as long as requests run",
}
SLOW = "slow"
"""The recorded model slept when it was told to; deadlines have tests of their own."""
NVIDIA = {
    *("runtime", "batch_input", "batch_output", "cc_model_filenames", "metric_tags"),
    *("model_warmup", "default_model_filename", "format", "is_shape_tensor", "optimization"),
    *("allow_ragged_batch", "optional", "is_non_linear_format_io", "label_filename", "parameters"),
    *(
        "preferred_batch_size",
        "max_queue_delay_microseconds",
        "preserve_ordering",
        "dynamic_batching",
    ),
    *("priority_levels", "default_priority_level", "priority_queue_policy", "latest", "direct"),
    *("sequence_batching", "secondary_devices", "profile", "passive", "host_policy", "gpus"),
    *("default_queue_policy", "response_cache", "model_transaction_policy", "control_input"),
    *("rate_limiter", "state", "model_operations"),
}
"""Keys of a configuration that nothing here has: how a GPU is used, how batches are made up."""


class Exchange(NamedTuple):
    """A request, and what Triton answered."""

    name: str
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    status: int
    answer: bytes


def exchanges(file: Path) -> list[Exchange]:
    found = []
    for text in file.read_text(encoding="utf-8").split("### ")[1:]:
        name, request, body, status, answer = text.rstrip("\n").split("\n")[:5]
        _, method, path, headers = request.split(" ", 3)
        found.append(
            Exchange(
                name,
                method,
                path,
                ast.literal_eval(headers) if headers else {},
                ast.literal_eval(body[2:]),
                int(status.split()[1]),
                ast.literal_eval(answer[2:]),
            )
        )
    return found


def ident() -> nn.Model:
    """y = x, where that is not negative, of any batch and width; n has a number per row."""
    builder = nn.ModelBuilder("ident")
    x = builder.input("x", (0, 0))
    open_ = Tensor(OperandType.TENSOR_FLOAT32, (0, 0))
    builder.output("y", builder.operation(OperationType.RELU, x, output=open_))
    mean = builder.mean(x, [1], keep_dims=True)
    whole = Tensor(OperandType.TENSOR_INT32, (0, 1))
    builder.output("n", builder.operation(OperationType.CAST, mean, output=whole))
    return builder.build()


def structure(value: Any) -> Any:
    """The types in a value of JSON; of lists those of their first element."""
    if isinstance(value, dict):
        return {key: structure(each) for key, each in value.items()}
    if isinstance(value, list):
        return [structure(value[0])] if value else []
    return "number" if isinstance(value, (int, float)) else type(value).__name__


def missing(recorded: Any, ours: Any, where: str = "") -> list[str]:
    """Where ours has not what was recorded; it may have more."""
    if isinstance(recorded, dict) and isinstance(ours, dict):
        found = []
        for key, value in recorded.items():
            if key in ours:
                found += missing(value, ours[key], f"{where}.{key}")
            elif key not in NVIDIA:
                found.append(f"{where}.{key} is missing")
        return found
    if isinstance(recorded, list) and isinstance(ours, list):
        return missing(recorded[0], ours[0], f"{where}[]") if recorded and ours else []
    return [] if recorded == ours else [f"{where} is {ours}, not {recorded}"]


def told(body: bytes, headers: Any) -> Any:
    """The JSON of an answer, and whether something is behind it."""
    length = int(headers.get("inference-header-content-length", len(body)))
    return json.loads(body[:length]) if body[:length] else None


def compared(exchange: Exchange, status: int, body: bytes, headers: Any) -> list[str]:
    """What is different."""
    expected = OTHER_STATUS.get(exchange.name, (exchange.status, exchange.status))[1]
    if status != expected:
        return [f"status {status}, not {expected}: {body[:200]!r}"]
    if (
        exchange.status in (404, 405)
        and b"error" in exchange.answer
        and b"model" not in exchange.answer
    ):
        return []
    match = re.match(rb"\{.*\}(?=[^}]*$)|\[.*\]", exchange.answer, re.DOTALL)
    if match is None:
        return []
    recorded = json.loads(match[0])
    ours = told(body, headers)
    if status != expected or exchange.name in OTHER_STATUS:
        return missing(structure(recorded), structure(ours))
    if "error" in recorded and exchange.status in (400, 404, 503):
        # Triton adds advice to some.
        is_same = recorded["error"].startswith(ours["error"])
        return [] if is_same or exchange.name in OTHER_TEXT else [f"says {ours}, not {recorded}"]
    return missing(structure(recorded), structure(ours))


def test_answers_have_the_structure_that_was_recorded(tmp_path: Path, shared: Path) -> None:
    recorded = exchanges(shared / "reference" / "triton" / "http.txt")
    assert len(recorded) > 50
    memory = Path(FOLDER) / "goldenshm"
    nn.save(ident(), tmp_path / "ident.nnm")
    nn.save(accumulator(), tmp_path / "acc.nnm")
    (tmp_path / "ident.toml").write_text("max_batch_size = 8\n")
    different: dict[str, list[str]] = {}

    async def run() -> None:
        options = ServeOptions(poll_s=0, allow_load=True)
        async with (
            nn.open_runtime(devices=["nnasync-reference"]) as runtime,
            ModelServer(runtime, folder=tmp_path, options=options) as server,
            browsing(server) as client,
        ):
            for number, exchange in enumerate(recorded):
                if exchange.name in SKIPPED or exchange.path in WITHOUT_NAME:
                    continue
                if exchange.name.startswith(SLOW):
                    continue
                answer = await client.request(
                    exchange.method,
                    exchange.path,
                    content=exchange.body,
                    headers=exchange.headers,
                )
                found = compared(exchange, answer.status_code, answer.content, answer.headers)
                if found:
                    different[f"{number} {exchange.name} {exchange.method} {exchange.path}"] = found

    memory.write_bytes(bytes(64))
    try:
        asyncio.run(asyncio.wait_for(run(), 60))
    finally:
        memory.unlink()
    assert different == {}
