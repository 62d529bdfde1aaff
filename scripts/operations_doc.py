"""Write docs/operations.md: every operation with its arguments, types and HAL versions.

The page comes from the signatures in `nnasync.kernels`, the ones that models are validated against.
`python -m scripts.operations_doc` writes it, `--check` says whether it is current.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from nnasync import hal
from nnasync.hal import OperationType
from nnasync.kernels import (
    EXTENSION_OPERATIONS,
    OPERATIONS,
    Operation,
    Parameter,
    Signature,
)

__all__ = ["main", "page"]

PATH = Path(__file__).resolve().parent.parent / "docs" / "operations.md"

_HEAD = """# Operations

All operations of HAL 1.3 with their arguments, written by `python -m scripts.operations_doc` from
the signatures that validation and kernels use. Where types vary they have letters: a row of the
table is one legal combination, with the HAL version that introduced it. An argument in *italics*
may be an operand without a value. "r2" is a tensor of rank 2, "r1-4" one of rank 1 to 4; without
such a word any rank is legal. Whatever is not here is refused when a model is validated.

Tensor types are written without `TENSOR_`; types in lower case are scalars.
"""

_LETTERS = "TUVWXYZABCDEFGH"

_CONTROL_FLOW = {
    "IF": """Since HAL 1.3. Runs one of two subgraphs.

Inputs: `condition` (BOOL8 of shape [1]), `then` and `else` (references to subgraphs), then the
inputs of the subgraphs. Outputs: those of the subgraphs, one at least.

Both subgraphs take and give what the operation does: equal types and quantization, and equal ranks
and dimensions where both are known.
""",
    "WHILE": """Since HAL 1.3. Runs a subgraph as long as another one says so.

Inputs: `condition` and `body` (references to subgraphs), then values. The first of them, as many as
there are outputs, are carried from round to round and given out at the end; further outputs of the
body are carried but not given out; the rest stays as it is. Outputs: one at least.

The condition takes all values and gives a BOOL8 of shape [1]. The body takes all values and gives
those that are carried. Types and quantization are equal throughout, ranks and dimensions where they
are known. A driver of the HAL may refuse values of unknown size; `nnasync-reference` takes them. A
loop ends with MissedDeadlineTransient when it has run longer than the loop timeout: 2 s unless the
execution says otherwise, 15 s at most.
""",
    "OEM_OPERATION": """Since HAL 1.0. Whatever a vendor makes of it: any operands are legal, and no
device of nnasync runs it.
""",
}


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for type in sorted(OperationType, key=lambda type: type.name):
        known = OPERATIONS.get(type)
        if known is not None:
            parts.append(f"## {type.name}\n\n{_section(known)}")
        elif type.name in _CONTROL_FLOW:
            parts.append(f"## {type.name}\n\n{_CONTROL_FLOW[type.name]}")
    for name in sorted({name for name, _ in EXTENSION_OPERATIONS}):
        parts.append(f"# Extension {name}\n\nTypes are numbers within the extension.\n")
        for (extension, number), operation in EXTENSION_OPERATIONS.items():
            if extension == name:
                parts.append(f"## {operation.name} ({number})\n\n{_section(operation)}")
    return "\n".join(parts)


def _section(operation: Operation) -> str:
    """One operation: for each list of arguments a table of types."""
    forms: dict[tuple[object, ...], list[Signature]] = {}
    for signature in operation.signatures:
        names = tuple((p.name, p.optional) for p in signature.inputs)
        results = tuple(p.name for p in signature.outputs)
        key = (names, results, signature.variadic, signature.variadic_outputs)
        forms.setdefault(key, []).append(signature)
    return "\n".join(_form(signatures) for signatures in forms.values())


def _form(signatures: Sequence[Signature]) -> str:
    """The arguments that a group of signatures shares, and their types."""
    first = signatures[0]
    letters: dict[tuple[str, ...], str] = {}
    lines = [
        f"Inputs: {_arguments(signatures, 'inputs', letters, repeated=first.variadic)}.",
        f"Outputs: {_arguments(signatures, 'outputs', letters, repeated=first.variadic_outputs)}.",
        "",
        f"| {' | '.join(['since', *letters.values()])} |",
        f"|{' --- |' * (1 + len(letters))}",
    ]
    rows = []
    for number, signature in enumerate(signatures):
        since = hal.version_name(signature.since).removeprefix("HAL ")
        rows.append(f"| {' | '.join([since, *(kinds[number] for kinds in letters)])} |")
    return "\n".join([*lines, *dict.fromkeys(rows)]) + "\n"


def _arguments(
    signatures: Sequence[Signature],
    field: str,
    letters: dict[tuple[str, ...], str],
    *,
    repeated: bool,
) -> str:
    """Names in order with their types; `letters` gets one for each column of types that vary."""
    texts = []
    count = len(getattr(signatures[0], field))
    for position in range(count):
        parameters = [getattr(signature, field)[position] for signature in signatures]
        name = parameters[0].name
        told = _ranks(parameters[0]) if len({p.ranks for p in parameters}) == 1 else ""
        kinds = tuple(_type(p) if told else f"{_type(p)} {_ranks(p)}".strip() for p in parameters)
        kind = kinds[0]
        if len(set(kinds)) > 1:
            kind = letters.setdefault(kinds, _LETTERS[len(letters) % len(_LETTERS)])
        text = f"*{name}*" if parameters[0].optional else f"`{name}`"
        many = " (one or more)" if repeated and position == _repeated(field, count) else ""
        texts.append(" ".join(word for word in (text, kind, told) if word) + many)
    return ", ".join(texts)


def _repeated(field: str, count: int) -> int:
    """Position of the argument that may come several times."""
    return 0 if field == "inputs" else count - 1


def _type(parameter: Parameter) -> str:
    name = hal.type_name(parameter.type)
    return name.lower() if hal.is_scalar(parameter.type) else name.removeprefix("TENSOR_")


def _ranks(parameter: Parameter) -> str:
    ordered = sorted(parameter.ranks)
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"r{ordered[0]}-{ordered[-1]}"
    return "r" + ",".join(map(str, ordered)) if ordered else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page or check it; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say whether it is current")
    arguments = parser.parse_args(argv)
    text = page()
    if not arguments.check:
        PATH.write_text(text, encoding="utf-8")
        return 0
    if PATH.is_file() and PATH.read_text(encoding="utf-8") == text:
        return 0
    print(f"{PATH.name} is not current: run python -m scripts.operations_doc", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
