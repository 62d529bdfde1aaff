"""Write docs/cli.md: every command of the command line with its arguments, from their parsers.

`python -m scripts.cli_doc` writes it, `--check` says whether it is current.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from nnasync.cli import _parser

__all__ = ["commands", "is_told", "main", "page"]

PATH = Path(__file__).resolve().parent.parent / "docs" / "cli.md"

_HEAD = """# Command line

Every command and its arguments, written by `python -m scripts.cli_doc` from their parsers;
`nnasync COMMAND --help` prints the same. A command's exit code is 0, 1 after an error (told in one
line on stderr), 2 for wrong arguments, 130 and 143 when Ctrl-C or SIGTERM ended it.
`NNASYNC_DEBUG=1` in the environment shows the traceback of an error.
"""


def commands() -> dict[str, argparse.ArgumentParser]:
    """The parser of each command, by its words: "nnasync run"."""
    return dict(_below("nnasync", _parser()))


def _below(
    words: str, parser: argparse.ArgumentParser
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield f"{words} {name}", inner
                yield from _below(f"{words} {name}", inner)


def page() -> str:
    """The page as it should be."""
    return "\n".join((_HEAD, *(_section(*each) for each in commands().items())))


def _section(words: str, parser: argparse.ArgumentParser) -> str:
    parts = [f"{'#' * words.count(' ')}# {words}\n", f"{parser.description or ''}\n"]
    rows = [_row(parser, action) for action in parser._actions if is_told(action)]
    if rows:
        parts.append("\n".join(("| argument | meaning |", "| --- | --- |", *rows, "")))
    if parser.epilog:
        parts.append(f"```text\n{parser.epilog.rstrip()}\n```\n")
    return "\n".join(parts)


def is_told(action: argparse.Action) -> bool:
    """Whether the page has a row for it: not for help, nor for what is kept for old scripts."""
    kinds = (argparse._HelpAction, argparse._SubParsersAction)
    return not isinstance(action, kinds) and action.help != argparse.SUPPRESS


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    values = {**vars(action), "prog": parser.prog}
    meaning = [(action.help or "") % values if "%" in (action.help or "") else action.help or ""]
    if action.choices is not None and action.metavar is not None:
        meaning.append("one of " + ", ".join(str(choice) for choice in action.choices))
    if getattr(action, "required", False) and action.option_strings:
        meaning.append("required")
    return f"| `{_cell(_written(action))}` | {_cell('; '.join(filter(None, meaning)))} |"


def _written(action: argparse.Action) -> str:
    """An argument as it is typed."""
    value = ""
    if action.nargs != 0:
        value = _placeholder(action)
    return " ".join(filter(None, (", ".join(action.option_strings), value)))


def _placeholder(action: argparse.Action) -> str:
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    choices = "|".join(str(choice) for choice in action.choices or ())
    is_option = bool(action.option_strings)
    name = action.metavar or choices or (action.dest.upper() if is_option else action.dest)
    more = {"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} ..."}
    return more.get(str(action.nargs), name)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page, or check it; the exit code is 1 if it is not current."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, only compare")
    text = page()
    if parser.parse_args(argv).check:
        return int(not PATH.exists() or PATH.read_text(encoding="utf-8") != text)
    PATH.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
