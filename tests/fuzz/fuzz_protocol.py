"""Damaged requests of the inference protocol, from their bytes to the bytes of an answer.

    python -m tests.fuzz.fuzz_protocol --runs 100000 --seed 1      the same requests again
    python -m tests.fuzz.fuzz_protocol --atheris -max_total_time=600     guided by coverage

A request is answered or refused with a ServingError that is the client's fault; anything else is a
finding, and is raised with the bytes that led to it.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FunctionType, ModuleType

import numpy as np

from nnasync._core.execution import Port
from nnasync.serving import Limits, ServingError, datatypes, json_protocol, parameters, tensors
from nnasync.serving.content_coding import unpacked
from nnasync.serving.json_protocol import decoded, encoded
from nnasync.serving.messages import InferAnswer, InferRequest
from nnasync.serving.shared_memory import SharedMemory
from nnasync.serving.tensors import ServedPort, Signature, arrays_of, outputs_of, wanted_outputs

_NO_LENGTH = 0xFFFF
LIMITS = Limits(elements=4096, body_bytes=1 << 16)
_PIECES = [
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b",",
    b":",
    b"null",
    b"-1",
    b"1e999",
    b"9" * 25,
    b"\\u0000",
]
_PIECES += [
    b"\xff",
    b"NaN",
    b"true",
    b'"FP16"',
    b'"BF16"',
    b'"BYTES"',
    b'"binary_data_size"',
    b"16",
]
_PIECES += [b'"classification"', b'"shared_memory_region"', b'"x"', b'"y"', b"[" * 2000]


def _port(name: str, shape: tuple[int, ...], datatype: str = "FP32") -> ServedPort:
    own = tuple(max(0, size) for size in shape)
    port = Port(name, own, np.dtype(np.float32), 0.0, 0, 0, is_settled=0 not in own)
    return ServedPort(port, datatype, shape, ("one", "two"))


SIGNATURES = (
    Signature("one", (_port("x", (1, 4)),), (_port("y", (1, 4)),)),
    Signature("open", (_port("x", (-1, 4)),), (_port("y", (-1, 4), "FP16"),), 4),
    Signature("half", (_port("x", (1, 4), "BF16"),), (_port("y", (1, 4), "BF16"),)),
)
_TENSOR = {"name": "x", "shape": [1, 4], "datatype": "FP32"}
_BINARY = {**_TENSOR, "parameters": {"binary_data_size": 16}}
_HALF = {**_TENSOR, "datatype": "BF16", "parameters": {"binary_data_size": 8}}
_WANTED = [{"name": "y", "parameters": {"binary_data": True}}]
SEEDS: tuple[tuple[bytes, bytes], ...] = tuple(
    (json.dumps(told).encode(), raw)
    for told, raw in (
        ({"inputs": [{**_TENSOR, "data": [1, 2, 3, 4]}]}, b""),
        ({"inputs": [{**_TENSOR, "data": [[1, 2, 3, 4]]}], "id": "a", "outputs": _WANTED}, b""),
        ({"inputs": [_BINARY], "parameters": {"binary_data_output": True}}, b"\0\1\2\3" * 4),
        ({"inputs": [_HALF], "outputs": _WANTED, "parameters": {"timeout": 5}}, b"\0\1" * 4),
        (
            {
                "inputs": [{**_TENSOR, "data": [1, 2, 3, 4]}],
                "outputs": [{"name": "y", "parameters": {"classification": 2}}],
                "parameters": {"priority": 1, "sequence_id": "s", "own": 1.5},
            },
            b"",
        ),
    )
)  # fmt: skip


def exchange(body: bytes, header: str | None, coding: str, signature: Signature) -> str:
    """What becomes of a request over HTTP."""
    return outcome(
        lambda: decoded(unpacked(body, coding, LIMITS.body_bytes), header, LIMITS, signature.model),
        encoded,
        signature,
    )


def outcome(
    read: Callable[[], InferRequest],
    write: Callable[[InferAnswer, InferRequest], object],
    signature: Signature,
) -> str:
    """What becomes of a request: "answered", or the status that it is refused with."""
    shared = SharedMemory()
    try:
        request = read()
        wanted = wanted_outputs(request, signature)
        arrays = arrays_of(request, signature, LIMITS, shared)
        outputs = outputs_of(wanted, arrays, signature, shared)
        write(InferAnswer(signature.model, "1", request.id, outputs), request)
    except ServingError as error:
        is_of_client = 400 <= error.code < 500 or error.code == 501
        if not is_of_client or not error.text:
            raise
        return str(int(error.code))
    finally:
        shared.close()
    return "answered"


def damaged(text: bytes, chance: random.Random) -> bytes:
    """The bytes with a few of them cut out, doubled, replaced or added."""
    content = bytearray(text)
    for _ in range(chance.choice((0, 1, 1, 2, 4))):
        start = chance.randrange(len(content) + 1)
        end = min(len(content), start + chance.choice((0, 1, 2, 8)))
        kind = chance.randrange(4)
        if kind == 0:
            content[start:end] = b""
        elif kind == 1:
            content[start:start] = content[start:end]
        elif kind == 2:
            content[start:end] = chance.choice(_PIECES)
        else:
            content[start:end] = chance.randbytes(chance.randrange(4))
    return bytes(content)


def one(chance: random.Random) -> str:
    """What becomes of one damaged request; raises RuntimeError for a finding."""
    text, raw = chance.choice(SEEDS)
    text = damaged(text, chance)
    if raw or chance.randrange(8) == 0:
        raw = damaged(raw, chance) if chance.randrange(2) else raw
    lengths = (str(len(text)), str(len(text)), None, "0", "-1", str(len(text) + 1), "x")
    header = chance.choice(lengths) if chance.randrange(4) == 0 else str(len(text))
    coding = chance.choice(("", "", "", "", "", "", "", "gzip", "deflate", "br"))
    signature = chance.choice(SIGNATURES)
    try:
        return exchange(text + raw, header, coding, signature)
    except Exception as error:
        case = (text + raw, header, coding, signature.model)
        raise RuntimeError(f"a finding: {case!r}") from error


def fuzz(
    runs: int,
    seed: int,
    tell: Callable[[str], object] = lambda text: None,
    *,
    one: Callable[[random.Random], str] = one,
) -> Counter[str]:
    """How often which outcome was there."""
    chance, counts = random.Random(seed), Counter[str]()
    for number in range(1, runs + 1):
        counts[one(chance)] += 1
        if number % 10_000 == 0:
            tell(f"{number}: {dict(counts)}")
    return counts


def look(content: bytes) -> None:
    """Ask with bytes of libFuzzer: the signature, the length of the JSON, and the body."""
    if len(content) < 3:
        return
    length = int.from_bytes(content[1:3], "little")
    header = None if length == _NO_LENGTH else str(length)
    exchange(content[3:], header, "", SIGNATURES[content[0] % len(SIGNATURES)])


def seeds() -> list[bytes]:
    """What `look` asks with the undamaged requests."""
    return [
        bytes([number]) + len(text).to_bytes(2, "little") + text + raw
        for number in range(len(SIGNATURES))
        for text, raw in SEEDS
    ]


def fuzz_with_atheris(
    arguments: list[str],
    look: Callable[[bytes], object],
    seeds: Sequence[bytes],
    modules: Sequence[ModuleType],
) -> None:
    """Have libFuzzer choose the bytes, by what runs in these modules; ends the process."""
    import atheris

    for module in modules:
        for function in vars(module).values():
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                atheris.instrument_func(function)
    folder = Path(tempfile.mkdtemp(prefix="seeds-"))
    for number, seed in enumerate(seeds):
        (folder / str(number)).write_bytes(seed)
    atheris.Setup([sys.argv[0], *arguments, str(folder)], look)
    atheris.Fuzz()


def run(
    description: str | None,
    one: Callable[[random.Random], str],
    look: Callable[[bytes], object],
    seeds: Sequence[bytes],
    modules: Sequence[ModuleType],
) -> None:
    """Fuzz for as long as the command line says."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=100_000, help="requests (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="which ones (%(default)s)")
    parser.add_argument("--atheris", action="store_true", help="the rest is for libFuzzer")
    options, rest = parser.parse_known_args()
    if options.atheris:
        fuzz_with_atheris(rest, look, seeds, modules)
    print(dict(fuzz(options.runs, options.seed, print, one=one)))


if __name__ == "__main__":
    run(__doc__, one, look, seeds(), [json_protocol, tensors, datatypes, parameters])
