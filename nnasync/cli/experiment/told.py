"""What came of an experiment as text: its figures, and what two results differ in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nnasync.cli.text import table
from nnasync.experiments import Change, Comparison, Fidelity, Figures, Interval, Results

_MEASURES = (
    ("attainment", "met %", 100.0, 2),
    ("goodput_hz", "goodput/s", 1.0, 1),
    ("mean_ms", "mean ms", 1.0, 3),
    ("p99_ms", "p99 ms", 1.0, 3),
    ("p999_ms", "p99.9 ms", 1.0, 3),
)
_TITLES = {
    "attainment": "deadlines met",
    "goodput_hz": "goodput/s",
    "mean_ms": "mean ms",
    "p99_ms": "p99 ms",
}


def figures_table(results: Results) -> str:
    """The figures of all points; where it was simulated and run, how far apart that was."""
    figures = results.figures()
    keys = list(dict.fromkeys(key for each in figures for key in each.values))
    heads = [_short(key) for key in keys]
    heads += ["stream", "run", *(title for _, title, _, _ in _MEASURES)]
    rows = [[*_values(each, keys), each.stream, each.kind, *_told(each)] for each in figures]
    lines = [table(heads, rows), *_fidelity(results.fidelity())]
    return "\n".join([*lines, *results.remarks()])


def comparison_table(comparison: Comparison, *, all_of_them: bool) -> str:
    """Returns a table of the changes, clear ones or all, and of what has no counterpart."""
    changes = [each for each in comparison.changes if all_of_them or each.is_clear]
    heads = ["point", "stream", "run", "measure", "A", "B", "B / A", "clear"]
    lines = [table(heads, [_change(each) for each in changes])] if changes else []
    clear = sum(each.is_clear for each in comparison.changes)
    lines.append(f"{clear} of {len(comparison.changes)} differ by more than their repeats do")
    for count, which in ((comparison.only_before, "A"), (comparison.only_after, "B")):
        if count:
            lines.append(f"{count} are in {which} only")
    return "\n".join(lines)


def _short(key: str) -> str:
    return key.rpartition(".")[2]


def _values(figures: Figures, keys: list[str]) -> list[str]:
    return [_value(figures.values.get(key, "")) for key in keys]


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _told(figures: Figures) -> list[str]:
    return [
        _interval(figures.measures.get(name), factor, digits)
        for name, _, factor, digits in _MEASURES
    ]


def _interval(found: Interval | None, factor: float, digits: int) -> str:
    if found is None:
        return ""
    half = "" if found.half is None else f" ±{found.half * factor:.{digits}f}"
    return f"{found.mean * factor:.{digits}f}{half}"


def _fidelity(errors: tuple[Fidelity, ...]) -> list[str]:
    if not errors:
        return []
    limits = " or ".join(f"{limit:.0%}" for limit in sorted({each.limit for each in errors}))
    counts = Counter(each.verdict for each in errors)
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    lines = [
        "",
        f"simulated beside real, {limits} (mean and p99) and 1 point (deadlines met): {verdicts}",
    ]
    for each in errors:
        if each.verdict != "within":
            where = ", ".join(f"{_short(key)} {_value(v)}" for key, v in each.values.items())
            place = ", ".join(filter(None, (each.stream, where)))
            lines.append(f"  {place}: {', '.join(_errors(each))}: {each.told}")
    return lines


def _errors(error: Fidelity) -> Iterator[str]:
    """The known errors in percent and points, with half of their confidence intervals."""
    for name, title in (("mean", "mean"), ("p99", "p99"), ("attainment", "deadlines met")):
        found = error.intervals.get(name)
        if found is not None:
            half = "" if found.half is None else f"±{100 * found.half:.1f}"
            unit = " points" if name == "attainment" else " %"
            yield f"{title} {100 * found.mean:+.1f}{half}{unit}"


def _change(change: Change) -> list[str]:
    where = ", ".join(f"{_short(key)} {_value(value)}" for key, value in change.values.items())
    ratio = "" if change.ratio is None else f"{change.ratio:.3f}"
    return [
        where,
        change.stream,
        change.kind,
        _TITLES[change.measure],
        _interval(change.before, 1.0, 4),
        _interval(change.after, 1.0, 4),
        ratio,
        "yes" if change.is_clear else "",
    ]
