"""`nnasync suite`: what devices are worth: right or wrong, how fast, and what they survive.

One module a suite, each with `add_part`.
"""

from __future__ import annotations

from typing import Any

from nnasync.cli.suite import benchmark, crash, report, soak
from nnasync.cli.text import HelpFormatter

__all__ = ["add_parser"]

_PARTS = (benchmark, crash, report, soak)
_EXAMPLES = """examples:
  nnasync suite crash --scale 0.01 --json crash.json
  nnasync suite soak --hours 1 --device nnasync-reference
  nnasync suite report benchmark.json
  nnasync suite report benchmark.json --html benchmark.html --compare last-week.json
"""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    parser = commands.add_parser(
        "suite",
        help="benchmark devices, and find out what they survive",
        description="Run networks and faults against devices, and write what came of it as JSON "
        "and as a page. What the suites do is in docs/suites.md.",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    parts = parser.add_subparsers(title="parts", metavar="PART", required=True)
    for part in _PARTS:
        part.add_part(parts)
