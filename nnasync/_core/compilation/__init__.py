"""A model, devices and preferences made into something that runs, and the report of why there.

Every device that takes the whole model competes, with each of its lowerings: all are prepared, run
on the same made-up inputs, compared with the reference, and measured in turns. The fastest that
agrees gets the model; the others are given back. The verdict is remembered, and told in the report,
whose pin reproduces the choice. With one contender nothing is measured. What was refused, and why,
stands in the report as well.

Where no device beside the reference takes the whole model, teams compete: each operation on the
device of the team that reports to be best at it.
"""

from __future__ import annotations

from nnasync._core.compilation.calibration import RELAXED as RELAXED
from nnasync._core.compilation.calibration import calibrated as calibrated
from nnasync._core.compilation.calibration import figures_in as figures_in
from nnasync._core.compilation.calibration import read_calibration as read_calibration
from nnasync._core.compilation.calibration import write_calibration as write_calibration
from nnasync._core.compilation.compiling import compile_model as compile_model
from nnasync._core.compilation.fallback import REFERENCE as REFERENCE
from nnasync._core.compilation.provenance import fingerprints as fingerprints
from nnasync._core.compilation.report import Better as Better
from nnasync._core.compilation.report import Candidate as Candidate
from nnasync._core.compilation.report import Compilation as Compilation
from nnasync._core.compilation.report import Fallback as Fallback
from nnasync._core.compilation.report import Fate as Fate
from nnasync._core.compilation.report import Partition as Partition
from nnasync._core.compilation.report import Rejection as Rejection
from nnasync._core.compilation.report import Report as Report
from nnasync._core.compilation.report import devices_of as devices_of
from nnasync._core.compilation.spec import DEFAULT_BUDGET_NS as DEFAULT_BUDGET_NS
from nnasync._core.compilation.spec import Apart as Apart
from nnasync._core.compilation.spec import CompileSpec as CompileSpec
from nnasync._core.compilation.spec import PlanTerms as PlanTerms
from nnasync._core.compilation.upgrade import bring_in as bring_in
from nnasync._core.compilation.upgrade import tell as tell
from nnasync._core.compilation.verdicts import Verdicts as Verdicts
from nnasync._core.state_files import state_folder as state_folder
