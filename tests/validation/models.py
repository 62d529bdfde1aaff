"""Small models, changes to them, and official cases, for tests of validation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nnasync.conformance.cases import Case, case_files, read_cases
from nnasync.suites.fuzz.small_models import (
    BOOL8 as BOOL8,
)
from nnasync.suites.fuzz.small_models import (
    COPY as COPY,
)
from nnasync.suites.fuzz.small_models import (
    EXAMPLE as EXAMPLE,
)
from nnasync.suites.fuzz.small_models import (
    FLOAT as FLOAT,
)
from nnasync.suites.fuzz.small_models import (
    INPUT as INPUT,
)
from nnasync.suites.fuzz.small_models import (
    OUTPUT as OUTPUT,
)
from nnasync.suites.fuzz.small_models import (
    REFERENCE as REFERENCE,
)
from nnasync.suites.fuzz.small_models import (
    TEMPORARY as TEMPORARY,
)
from nnasync.suites.fuzz.small_models import (
    branching as branching,
)
from nnasync.suites.fuzz.small_models import (
    changed as changed,
)
from nnasync.suites.fuzz.small_models import (
    constant as constant,
)
from nnasync.suites.fuzz.small_models import (
    counted as counted,
)
from nnasync.suites.fuzz.small_models import (
    example as example,
)
from nnasync.suites.fuzz.small_models import (
    find as find,
)
from nnasync.suites.fuzz.small_models import (
    looping as looping,
)
from nnasync.suites.fuzz.small_models import (
    operand as operand,
)
from nnasync.suites.fuzz.small_models import (
    reference as reference,
)
from nnasync.suites.fuzz.small_models import (
    replace as replace,
)
from nnasync.suites.fuzz.small_models import (
    subgraph as subgraph,
)
from nnasync.suites.fuzz.small_models import (
    with_main as with_main,
)


def official(shared: Path) -> Iterator[Case]:
    """All official cases that are to succeed."""
    for path in case_files(shared / "cts"):
        for case in read_cases(path):
            if not case.expect_failure:
                yield case


def one_of_each(shared: Path, *, types: bool = False) -> list[Case]:
    """The first small case of each operation, with `types` of each type of its first operand."""
    found: dict[tuple[int, int], Case] = {}
    for case in official(shared):
        main = case.model.main
        if len(main.operations) > 3:
            continue
        for operation in main.operations:
            type = main.operands[operation.inputs[0]].type if types else 0
            found.setdefault((operation.type, type), case)
    return list({id(case): case for case in found.values()}.values())
