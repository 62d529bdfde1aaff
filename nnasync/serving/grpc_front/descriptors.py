"""The messages of the gRPC protocol, as classes from a descriptor pool of our own.

Protocol buffers identify a field by its number, so the tables below are all that two programs have
to agree on: the service `inference.GRPCInferenceService` of the Open Inference Protocol with
Triton's extensions, and `grpc.health.v1.Health`. Libraries that generate classes from `.proto`
files register them by file and message name in one pool of the process, in which `tritonclient`,
`kserve` and others collide with each other; a pool of our own collides with nobody, whatever else
is imported.

A line of a table is "number name type". A type is a scalar type, a message or an enumeration of
the tables; `[]` after it stands for a repeated field, `{}` for a map from strings to it, and
`|name` for a member of the choice of that name. Fields that nobody here reads or writes are left
out: what is unknown is skipped by the protocol's rules.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Container, Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

INFERENCE = """
ServerLiveRequest:
ServerLiveResponse: 1 live bool
ServerReadyRequest:
ServerReadyResponse: 1 ready bool
ModelReadyRequest: 1 name string, 2 version string
ModelReadyResponse: 1 ready bool
ServerMetadataRequest:
ServerMetadataResponse: 1 name string, 2 version string, 3 extensions string[]
ModelMetadataRequest: 1 name string, 2 version string
ModelMetadataResponse.TensorMetadata: 1 name string, 2 datatype string, 3 shape int64[]
ModelMetadataResponse: 1 name string, 2 versions string[], 3 platform string,
    4 inputs ModelMetadataResponse.TensorMetadata[],
    5 outputs ModelMetadataResponse.TensorMetadata[]

InferParameter: 1 bool_param bool|parameter_choice, 2 int64_param int64|parameter_choice,
    3 string_param string|parameter_choice, 4 double_param double|parameter_choice,
    5 uint64_param uint64|parameter_choice
InferTensorContents: 1 bool_contents bool[], 2 int_contents int32[], 3 int64_contents int64[],
    4 uint_contents uint32[], 5 uint64_contents uint64[], 6 fp32_contents float[],
    7 fp64_contents double[], 8 bytes_contents bytes[]
ModelInferRequest.InferInputTensor: 1 name string, 2 datatype string, 3 shape int64[],
    4 parameters InferParameter{}, 5 contents InferTensorContents
ModelInferRequest.InferRequestedOutputTensor: 1 name string, 2 parameters InferParameter{}
ModelInferRequest: 1 model_name string, 2 model_version string, 3 id string,
    4 parameters InferParameter{}, 5 inputs ModelInferRequest.InferInputTensor[],
    6 outputs ModelInferRequest.InferRequestedOutputTensor[], 7 raw_input_contents bytes[]
ModelInferResponse.InferOutputTensor: 1 name string, 2 datatype string, 3 shape int64[],
    4 parameters InferParameter{}, 5 contents InferTensorContents
ModelInferResponse: 1 model_name string, 2 model_version string, 3 id string,
    4 parameters InferParameter{}, 5 outputs ModelInferResponse.InferOutputTensor[],
    6 raw_output_contents bytes[]
ModelStreamInferResponse: 1 error_message string, 2 infer_response ModelInferResponse

ModelConfigRequest: 1 name string, 2 version string
ModelConfigResponse: 1 config ModelConfig
ModelStatisticsRequest: 1 name string, 2 version string
StatisticDuration: 1 count uint64, 2 ns uint64
InferStatistics: 1 success StatisticDuration, 2 fail StatisticDuration, 3 queue StatisticDuration,
    4 compute_input StatisticDuration, 5 compute_infer StatisticDuration,
    6 compute_output StatisticDuration, 7 cache_hit StatisticDuration,
    8 cache_miss StatisticDuration
InferResponseStatistics: 1 compute_infer StatisticDuration, 2 compute_output StatisticDuration,
    3 success StatisticDuration, 4 fail StatisticDuration, 5 empty_response StatisticDuration,
    6 cancel StatisticDuration
InferBatchStatistics: 1 batch_size uint64, 2 compute_input StatisticDuration,
    3 compute_infer StatisticDuration, 4 compute_output StatisticDuration
MemoryUsage: 1 type string, 2 id int64, 3 byte_size uint64
ModelStatistics: 1 name string, 2 version string, 3 last_inference uint64,
    4 inference_count uint64, 5 execution_count uint64, 6 inference_stats InferStatistics,
    7 batch_stats InferBatchStatistics[], 8 memory_usage MemoryUsage[],
    9 response_stats InferResponseStatistics{}
ModelStatisticsResponse: 1 model_stats ModelStatistics[]

ModelRepositoryParameter: 1 bool_param bool|parameter_choice, 2 int64_param int64|parameter_choice,
    3 string_param string|parameter_choice, 4 bytes_param bytes|parameter_choice
RepositoryIndexRequest: 1 repository_name string, 2 ready bool
RepositoryIndexResponse.ModelIndex: 1 name string, 2 version string, 3 state string,
    4 reason string
RepositoryIndexResponse: 1 models RepositoryIndexResponse.ModelIndex[]
RepositoryModelLoadRequest: 1 repository_name string, 2 model_name string,
    3 parameters ModelRepositoryParameter{}
RepositoryModelLoadResponse:
RepositoryModelUnloadRequest: 1 repository_name string, 2 model_name string,
    3 parameters ModelRepositoryParameter{}
RepositoryModelUnloadResponse:

SystemSharedMemoryStatusRequest: 1 name string
SystemSharedMemoryStatusResponse.RegionStatus: 1 name string, 2 key string, 3 offset uint64,
    4 byte_size uint64
SystemSharedMemoryStatusResponse: 1 regions SystemSharedMemoryStatusResponse.RegionStatus{}
SystemSharedMemoryRegisterRequest: 1 name string, 2 key string, 3 offset uint64,
    4 byte_size uint64
SystemSharedMemoryRegisterResponse:
SystemSharedMemoryUnregisterRequest: 1 name string
SystemSharedMemoryUnregisterResponse:
CudaSharedMemoryStatusRequest: 1 name string
CudaSharedMemoryStatusResponse.RegionStatus: 1 name string, 2 device_id uint64, 3 byte_size uint64
CudaSharedMemoryStatusResponse: 1 regions CudaSharedMemoryStatusResponse.RegionStatus{}
CudaSharedMemoryRegisterRequest: 1 name string, 2 raw_handle bytes, 3 device_id int64,
    4 byte_size uint64
CudaSharedMemoryRegisterResponse:
CudaSharedMemoryUnregisterRequest: 1 name string
CudaSharedMemoryUnregisterResponse:

TraceSettingRequest.SettingValue: 1 value string[]
TraceSettingRequest: 1 settings TraceSettingRequest.SettingValue{}, 2 model_name string
TraceSettingResponse.SettingValue: 1 value string[]
TraceSettingResponse: 1 settings TraceSettingResponse.SettingValue{}
LogSettingsRequest.SettingValue: 1 bool_param bool|parameter_choice,
    2 uint32_param uint32|parameter_choice, 3 string_param string|parameter_choice
LogSettingsRequest: 1 settings LogSettingsRequest.SettingValue{}
LogSettingsResponse.SettingValue: 1 bool_param bool|parameter_choice,
    2 uint32_param uint32|parameter_choice, 3 string_param string|parameter_choice
LogSettingsResponse: 1 settings LogSettingsResponse.SettingValue{}

ModelConfig: 1 name string, 2 platform string, 17 backend string, 25 runtime string,
    3 version_policy ModelVersionPolicy, 4 max_batch_size int32, 5 input ModelInput[],
    6 output ModelOutput[], 7 instance_group ModelInstanceGroup[],
    8 default_model_filename string, 11 dynamic_batching ModelDynamicBatching|scheduling_choice,
    12 optimization ModelOptimizationPolicy,
    13 sequence_batching ModelSequenceBatching|scheduling_choice, 14 parameters ModelParameter{},
    19 model_transaction_policy ModelTransactionPolicy, 24 response_cache ModelResponseCache
ModelVersionPolicy.Latest: 1 num_versions uint32
ModelVersionPolicy.All:
ModelVersionPolicy.Specific: 1 versions int64[]
ModelVersionPolicy: 1 latest ModelVersionPolicy.Latest|policy_choice,
    2 all ModelVersionPolicy.All|policy_choice,
    3 specific ModelVersionPolicy.Specific|policy_choice
ModelTensorReshape: 1 shape int64[]
ModelInput: 1 name string, 2 data_type DataType, 3 format ModelInput.Format, 4 dims int64[],
    5 reshape ModelTensorReshape, 6 is_shape_tensor bool, 7 allow_ragged_batch bool,
    8 optional bool, 9 is_non_linear_format_io bool
ModelOutput: 1 name string, 2 data_type DataType, 3 dims int64[], 4 label_filename string,
    5 reshape ModelTensorReshape, 6 is_shape_tensor bool, 7 is_non_linear_format_io bool
ModelInstanceGroup: 1 name string, 2 count int32, 3 gpus int32[],
    4 kind ModelInstanceGroup.Kind
ModelOptimizationPolicy.PinnedMemoryBuffer: 1 enable bool
ModelOptimizationPolicy: 2 priority ModelOptimizationPolicy.ModelPriority,
    5 input_pinned_memory ModelOptimizationPolicy.PinnedMemoryBuffer,
    6 output_pinned_memory ModelOptimizationPolicy.PinnedMemoryBuffer,
    7 gather_kernel_buffer_threshold uint32, 8 eager_batching bool
ModelQueuePolicy: 1 timeout_action ModelQueuePolicy.TimeoutAction,
    2 default_timeout_microseconds uint64, 3 allow_timeout_override bool, 4 max_queue_size uint32
ModelDynamicBatching: 1 preferred_batch_size int32[], 2 max_queue_delay_microseconds uint64,
    3 preserve_ordering bool, 4 priority_levels uint64, 5 default_priority_level uint64,
    6 default_queue_policy ModelQueuePolicy
ModelSequenceBatching.Control: 1 kind ModelSequenceBatching.Control.Kind,
    2 int32_false_true int32[], 3 fp32_false_true float[], 4 data_type DataType,
    5 bool_false_true bool[]
ModelSequenceBatching.ControlInput: 1 name string, 2 control ModelSequenceBatching.Control[]
ModelSequenceBatching.StrategyDirect: 1 max_queue_delay_microseconds uint64,
    2 minimum_slot_utilization float
ModelSequenceBatching.StrategyOldest: 1 max_candidate_sequences int32,
    2 preferred_batch_size int32[], 3 max_queue_delay_microseconds uint64
ModelSequenceBatching: 1 max_sequence_idle_microseconds uint64,
    2 control_input ModelSequenceBatching.ControlInput[],
    3 direct ModelSequenceBatching.StrategyDirect|strategy_choice,
    4 oldest ModelSequenceBatching.StrategyOldest|strategy_choice
ModelParameter: 1 string_value string
ModelTransactionPolicy: 1 decoupled bool
ModelResponseCache: 1 enable bool
"""

HEALTH = """
HealthCheckRequest: 1 service string
HealthCheckResponse: 1 status HealthCheckResponse.ServingStatus
"""

ENUMERATIONS = {
    "DataType": (
        *("TYPE_INVALID", "TYPE_BOOL", "TYPE_UINT8", "TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64"),
        *("TYPE_INT8", "TYPE_INT16", "TYPE_INT32", "TYPE_INT64", "TYPE_FP16", "TYPE_FP32"),
        *("TYPE_FP64", "TYPE_STRING", "TYPE_BF16"),
    ),
    "ModelInput.Format": ("FORMAT_NONE", "FORMAT_NHWC", "FORMAT_NCHW"),
    "ModelInstanceGroup.Kind": ("KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL"),
    "ModelOptimizationPolicy.ModelPriority": ("PRIORITY_DEFAULT", "PRIORITY_MAX", "PRIORITY_MIN"),
    "ModelQueuePolicy.TimeoutAction": ("REJECT", "DELAY"),
    "ModelSequenceBatching.Control.Kind": (
        *("CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_READY", "CONTROL_SEQUENCE_END"),
        "CONTROL_SEQUENCE_CORRID",
    ),
}
"""Names of the values, which are numbered from 0."""

HEALTH_ENUMERATIONS = {
    "HealthCheckResponse.ServingStatus": ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"),
}

_Field: Any = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    name: _Field.Type.Value(f"TYPE_{name.upper()}")
    for name in ("bool", "int32", "int64", "uint32", "uint64", "float", "double", "string", "bytes")
}
_FIELD = re.compile(r"(\d+) (\w+) ([\w.]+)(\[\]|\{\})?(?:\|(\w+))?")


def message_class(name: str, package: str = "inference") -> Any:
    """Returns the class of a message of the tables, by its name with those that it is nested in."""
    return _classes()[f"{package}.{name}"]


@functools.cache
def _classes() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    files = [
        file_of("inference", INFERENCE, ENUMERATIONS),
        file_of("grpc.health.v1", HEALTH, HEALTH_ENUMERATIONS),
    ]
    for file in files:
        pool.Add(file)
    return dict(message_factory.GetMessageClassesForFiles([file.name for file in files], pool))


def file_of(package: str, table: str, enumerations: Mapping[str, tuple[str, ...]]) -> Any:
    """Returns the file descriptor of a table, of which the protobuf library makes classes."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"nnasync/{package}.proto", package=package, syntax="proto3"
    )
    fields = dict(re.findall(r"^([\w.]+):((?:.|\n )*)$", table, re.MULTILINE))
    messages: dict[str, Any] = {"": file}
    for name in sorted(fields):  # A message stands before those that are nested in it.
        outer, _, own = name.rpartition(".")
        inside = messages[outer].nested_type if outer else file.message_type
        messages[name] = inside.add(name=own)
    for name, values in enumerations.items():
        outer, _, own = name.rpartition(".")
        enumeration = messages[outer].enum_type.add(name=own)
        for number, value in enumerate(values):
            enumeration.value.add(name=value, number=number)
    for name, text in fields.items():
        for field in _FIELD.findall(text):
            _add_field(messages[name], f".{package}.", name, field, enumerations)
    return file


def _add_field(
    message: Any,
    prefix: str,
    owner: str,
    field: tuple[str, str, str, str, str],
    enumerations: Container[str],
) -> None:
    number, name, kind, form, choice = field
    label = _Field.LABEL_REPEATED if form else _Field.LABEL_OPTIONAL
    added = message.field.add(name=name, number=int(number), label=label)
    if form == "{}":
        entry = _map_entry(message, name)
        _set_type(entry.field[1], prefix, kind, enumerations)
        added.type, added.type_name = _Field.TYPE_MESSAGE, f"{prefix}{owner}.{entry.name}"
    else:
        _set_type(added, prefix, kind, enumerations)
    if choice:
        if not message.oneof_decl:
            message.oneof_decl.add(name=choice)
        added.oneof_index = 0


def _map_entry(message: Any, name: str) -> Any:
    """Declares a map as what it is on the wire: a repeated message of a key and a value."""
    camel = "".join(part.capitalize() for part in name.split("_"))
    entry = message.nested_type.add(name=f"{camel}Entry")
    entry.options.map_entry = True
    one = _Field.LABEL_OPTIONAL
    entry.field.add(name="key", number=1, label=one, type=_Field.TYPE_STRING)
    entry.field.add(name="value", number=2, label=one)
    return entry


def _set_type(field: Any, prefix: str, kind: str, enumerations: Container[str]) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type = _Field.TYPE_ENUM if kind in enumerations else _Field.TYPE_MESSAGE
        field.type_name = f"{prefix}{kind}"
