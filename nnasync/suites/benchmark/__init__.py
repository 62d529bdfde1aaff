"""How right and how fast networks are on each device, against a baseline, on the same data.

`run_benchmark` adds a row for each network and target to a `Gathering`; `open_children` measures in
processes of their own, `InThisProcess` on a runtime that is open. `subjects_in` reads lists of
networks.
"""

from nnasync.suites.benchmark.children import InThisProcess, MeasureBench, open_children
from nnasync.suites.benchmark.comparing import PairedVerdict, compared
from nnasync.suites.benchmark.data import DataSequence, DataSet
from nnasync.suites.benchmark.evaluators import (
    Evaluation,
    Evaluator,
    PhoneErrors,
    Score,
    TopK,
    WordErrors,
)
from nnasync.suites.benchmark.media import gray_frames, samples_of
from nnasync.suites.benchmark.model_list import (
    ListedModel,
    PictureFolder,
    random_data,
    read_model_list,
    subject_of,
    subjects_in,
)
from nnasync.suites.benchmark.running import Benchmark, Subject, run_benchmark
from nnasync.suites.benchmark.signal_evaluators import (
    DetectionPrecision,
    SignalToNoise,
    SpeechDistortion,
)
from nnasync.suites.benchmark.targets import BenchTarget, baselines, targets_of
from nnasync.suites.benchmark.timing import TimingRules

__all__ = [
    "BenchTarget",
    "Benchmark",
    "DataSequence",
    "DataSet",
    "DetectionPrecision",
    "Evaluation",
    "Evaluator",
    "InThisProcess",
    "ListedModel",
    "MeasureBench",
    "PairedVerdict",
    "PhoneErrors",
    "PictureFolder",
    "Score",
    "SignalToNoise",
    "SpeechDistortion",
    "Subject",
    "TimingRules",
    "TopK",
    "WordErrors",
    "baselines",
    "compared",
    "gray_frames",
    "open_children",
    "random_data",
    "read_model_list",
    "run_benchmark",
    "samples_of",
    "subject_of",
    "subjects_in",
    "targets_of",
]
