"""The configuration of a served model as Triton writes it, and its description.

The names are those of the messages of gRPC, too.
"""

from __future__ import annotations

from typing import Any

from nnasync.serving.messages import ModelMetadata
from nnasync.serving.model_settings import PRIORITY_LEVELS
from nnasync.serving.served_model import PLATFORM, ServedModel
from nnasync.serving.tensors import ServedPort

_DEFAULT_LEVELS = {"high": 1, "medium": 2, "low": 3}


def metadata_of(model: ServedModel, versions: tuple[str, ...]) -> ModelMetadata:
    """Returns a model's metadata: the description of its inputs, outputs and versions."""
    signature = model.signature
    return ModelMetadata(
        model.name,
        versions,
        PLATFORM,
        tuple(port.metadata for port in signature.inputs),
        tuple(port.metadata for port in signature.outputs),
    )


def config_of(model: ServedModel) -> dict[str, Any]:
    """Returns the configuration of a model; dimensions are without that of the batch."""
    settings, signature = model.settings, model.signature
    config: dict[str, Any] = {
        "name": model.name,
        "platform": PLATFORM,
        "backend": "nnasync",
        "runtime": "",
        "version_policy": {"all": {}},
        "max_batch_size": settings.max_batch_size,
        "input": [
            {
                **_port(port, settings.max_batch_size),
                "format": "FORMAT_NONE",
                "allow_ragged_batch": False,
                "optional": False,
            }
            for port in signature.inputs
        ],
        "output": [
            {**_port(port, settings.max_batch_size), "label_filename": ""}
            for port in signature.outputs
        ],
        "batch_input": [],
        "batch_output": [],
        "optimization": {
            "priority": "PRIORITY_DEFAULT",
            "input_pinned_memory": {"enable": False},
            "output_pinned_memory": {"enable": False},
            "gather_kernel_buffer_threshold": 0,
            "eager_batching": False,
        },
        "instance_group": [
            {
                "name": f"{model.name}_0",
                "kind": "KIND_CPU",
                "count": max(1, settings.instances),
                "gpus": [],
                "secondary_devices": [],
                "profile": [],
                "passive": False,
                "host_policy": "",
            }
        ],
        "default_model_filename": "",
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": {},
        "model_warmup": [],
        "model_transaction_policy": {"decoupled": False},
    }
    config.update(_scheduling(model))
    return config


def _port(port: ServedPort, max_batch_size: int) -> dict[str, Any]:
    kind = "STRING" if port.datatype == "BYTES" else port.datatype
    return {
        "name": port.name,
        "data_type": f"TYPE_{kind}",
        "dims": list(port.shape[1:] if max_batch_size and port.port.shape else port.shape),
        "is_shape_tensor": False,
        "is_non_linear_format_io": False,
    }


def _scheduling(model: ServedModel) -> dict[str, Any]:
    settings = model.settings
    if model.is_stateful:
        idle_us = int(settings.sequences.idle_s * 1e6)
        return {
            "sequence_batching": {
                "max_sequence_idle_microseconds": idle_us,
                "control_input": [],
                "state": [],
                "iterative_sequence": False,
            }
        }
    batching = settings.batching
    return {
        "dynamic_batching": {
            "preferred_batch_size": [] if batching is None else [batching.max_size],
            "max_queue_delay_microseconds": 0 if batching is None else int(batching.window_us),
            "preserve_ordering": False,
            "priority_levels": PRIORITY_LEVELS,
            "default_priority_level": _DEFAULT_LEVELS[settings.priority],
            "default_queue_policy": {
                "timeout_action": "REJECT",
                "default_timeout_microseconds": int(settings.timeout_ms * 1000),
                "allow_timeout_override": True,
                "max_queue_size": settings.max_queue_size,
            },
            "priority_queue_policy": {},
        }
    }
