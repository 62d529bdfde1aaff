"""Damaged messages of gRPC, from their bytes to the bytes of an answer.

    python -m tests.fuzz.fuzz_grpc --runs 100000 --seed 1      the same messages again
    python -m tests.fuzz.fuzz_grpc --atheris -max_total_time=600     guided by coverage

What counts as a finding is told in `fuzz_protocol`, whose requests these are.
"""

from __future__ import annotations

import json
import random
from typing import Any

from google.protobuf.json_format import ParseDict

from nnasync.serving import datatypes, parameters, tensors
from nnasync.serving.grpc_front import conversion, raw_contents
from nnasync.serving.grpc_front.conversion import answer_of, request_of
from nnasync.serving.grpc_front.descriptors import message_class
from tests.fuzz import fuzz_protocol
from tests.fuzz.fuzz_protocol import SIGNATURES, damaged, outcome

_REQUEST = message_class("ModelInferRequest")
_KINDS = {bool: "boolParam", int: "int64Param", float: "doubleParam", str: "stringParam"}


def _parameters(told: dict[str, Any]) -> dict[str, Any]:
    """Parameters as the messages have them; the sizes of raw tensors are not among them."""
    given = {name: value for name, value in told.items() if name != "binary_data_size"}
    return {name: {_KINDS[type(value)]: value} for name, value in given.items()}


def message_of(text: bytes, raw: bytes) -> bytes:
    """A request over HTTP as a message."""
    told = json.loads(text)
    message: dict[str, Any] = {"modelName": "m", "id": told.get("id", "")}
    message["parameters"] = _parameters(told.get("parameters", {}))
    message["inputs"] = []
    for tensor in told["inputs"]:
        own = {name: tensor[name] for name in ("name", "shape", "datatype")}
        if "data" in tensor:
            flat = tensor["data"]
            values = flat[0] if isinstance(flat[0], list) else flat
            own["contents"] = {"fp32Contents": values}
        message["inputs"].append(own)
    message["outputs"] = [
        {"name": each["name"], "parameters": _parameters(each["parameters"])}
        for each in told.get("outputs", ())
    ]
    found = ParseDict(message, _REQUEST())
    if raw:
        found.raw_input_contents.append(raw)
    return bytes(found.SerializeToString())


SEEDS = [message_of(text, raw) for text, raw in fuzz_protocol.SEEDS]


def exchange(message: bytes, number: int, *, is_streamed: bool) -> str:
    """What becomes of a message for a network with one of the signatures."""
    return outcome(
        lambda: request_of(message),
        lambda answer, _: answer_of(answer, is_streamed=is_streamed),
        SIGNATURES[number % len(SIGNATURES)],
    )


def one(chance: random.Random) -> str:
    """What becomes of one damaged message; raises RuntimeError for a finding."""
    message = damaged(chance.choice(SEEDS), chance)
    number, is_streamed = chance.randrange(len(SIGNATURES)), chance.random() < 0.5
    try:
        return exchange(message, number, is_streamed=is_streamed)
    except Exception as error:
        raise RuntimeError(f"a finding: {message!r}, {SIGNATURES[number].model}") from error


def look(content: bytes) -> None:
    """Ask with bytes of libFuzzer: the signature, and the message."""
    if content:
        exchange(content[1:], content[0] >> 1, is_streamed=bool(content[0] & 1))


def seeds() -> list[bytes]:
    """What `look` asks with the undamaged messages."""
    return [bytes([2 * number]) + each for number in range(len(SIGNATURES)) for each in SEEDS]


if __name__ == "__main__":
    modules = [conversion, raw_contents, tensors, datatypes, parameters]
    fuzz_protocol.run(__doc__, one, look, seeds(), modules)
