"""The messages of gRPC: numbers of fields, and life beside other libraries that have them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("google.protobuf", reason="the extra serve is not installed")

from google.protobuf import descriptor_pb2

from nnasync.serving.grpc_front import descriptors

FILES: list[tuple[str, str, Mapping[str, tuple[str, ...]]]] = [
    ("inference", descriptors.INFERENCE, descriptors.ENUMERATIONS),
    ("grpc.health.v1", descriptors.HEALTH, descriptors.HEALTH_ENUMERATIONS),
]


def test_a_message_survives_its_bytes() -> None:
    kind = descriptors.message_class("ModelInferRequest")
    message = kind(model_name="m", raw_input_contents=[b"abc"])
    message.parameters["priority"].uint64_param = 1
    message.inputs.add(name="x", datatype="FP32", shape=[1, -1]).contents.fp32_contents.append(2.5)
    again = kind.FromString(message.SerializeToString())
    assert again == message
    assert again.parameters["priority"].WhichOneof("parameter_choice") == "uint64_param"


def test_only_one_of_a_choice_is_set() -> None:
    parameter = descriptors.message_class("InferParameter")(bool_param=True)
    parameter.string_param = "x"
    assert not parameter.bool_param
    assert parameter.WhichOneof("parameter_choice") == "string_param"


def test_every_line_of_the_tables_became_a_field() -> None:
    for package, table, enumerations in FILES:
        file = descriptors.file_of(package, table, enumerations)
        count = sum(_fields(message) for message in file.message_type)
        assert count == len(descriptors._FIELD.findall(table)), package


def _fields(message: Any) -> int:
    own = [] if message.options.map_entry else message.field
    return len(own) + sum(_fields(nested) for nested in message.nested_type)


def test_no_number_is_used_twice() -> None:
    for package, table, enumerations in FILES:
        for message in _all(descriptors.file_of(package, table, enumerations).message_type):
            numbers = [field.number for field in message.field]
            assert len(set(numbers)) == len(numbers), message.name


def _all(messages: Any) -> Any:
    for message in messages:
        yield message
        yield from _all(message.nested_type)


def test_tritons_client_agrees_on_every_field() -> None:
    """Names, numbers, types, repetition, choices; it knows more fields than we use."""
    pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
    from tritonclient.grpc import model_config_pb2, service_pb2

    theirs: dict[str, Any] = {}
    for module in (service_pb2, model_config_pb2):
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        theirs |= {message.name: message for message in file.message_type}
    ours = descriptors.file_of(*FILES[0])
    for message in ours.message_type:
        _agree(message, theirs[message.name])


def _agree(ours: Any, theirs: Any) -> None:
    known = {field.name: field for field in theirs.field}
    for field in ours.field:
        other = known[field.name]
        assert field.number == other.number, (ours.name, field.name)
        assert (field.type, field.label) == (other.type, other.label), (ours.name, field.name)
        assert field.type_name.rpartition(".")[2] == other.type_name.rpartition(".")[2]
        assert field.HasField("oneof_index") == other.HasField("oneof_index")
    for enumeration in ours.enum_type:
        other = next(each for each in theirs.enum_type if each.name == enumeration.name)
        values = {value.name: value.number for value in other.value}
        assert {value.name: value.number for value in enumeration.value}.items() <= values.items()
    for nested in ours.nested_type:
        _agree(nested, next(each for each in theirs.nested_type if each.name == nested.name))


@pytest.mark.parametrize(
    "first, second",
    [
        ("tritonclient.grpc", "nnasync.serving.grpc_front.descriptors"),
        ("nnasync.serving.grpc_front.descriptors", "tritonclient.grpc"),
    ],
)
def test_both_live_in_one_process_in_either_order(first: str, second: str) -> None:
    pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
    code = (
        f"import {first}, {second}\n"
        "from nnasync.serving.grpc_front.descriptors import message_class\n"
        "from tritonclient.grpc import service_pb2\n"
        "ours = message_class('ModelInferRequest')(model_name='m')\n"
        "theirs = service_pb2.ModelInferRequest.FromString(ours.SerializeToString())\n"
        "assert theirs.model_name == 'm' and type(theirs) is not type(ours)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
