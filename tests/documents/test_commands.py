"""The commands in documents: all are read as a shell and the parsers read them, and many are run.

Each of `nnasync` goes through the parser of its command. Those that end by themselves within a
moment are run here, on small models in place of the reader's; servers, watchers and long runs are
run by the tests of their commands, with the same options. Of `python`, `make` and `pip` the module,
the file with its options, the target, and the extras have to be there. Of programs of others
(Docker, curl, Ray ...) only the name is known here.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from nnasync.cli import _parser, main
from scripts import cli_doc
from tests.documents.blocks import DOCUMENTS, ROOT, blocks, name_of
from tests.importers.tflite_files import G, Op, floats, graphs_file

OF_OTHERS = {".", "chmod", "curl", "echo", "export", "jupyter", "openssl", "serve", "uvicorn"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
LANGUAGES = {"python", "sh", "text", "toml", "yaml"}
QUICK = ("devices", "verdicts", "run model.tflite", "dump model.tflite")
"""How commands begin that are run here; the others serve, watch, or take their time."""
OPERATORS = {"&&", "||", "|", ";", ">"}


def lines_of(text: str) -> Iterator[str]:
    """The lines that are typed: those behind a `$` where there is one, else all."""
    lines = re.sub(r" *\\\n *", " ", text).splitlines()
    typed = [line[2:] for line in lines if line.startswith("$ ")]
    yield from typed or lines


def commands_of(line: str) -> Iterator[list[str]]:
    """The words of each command of a line, without variables that are set for it."""
    reader = shlex.shlex(line, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    words, is_file = list[str](), False
    for word in [*reader, ";"]:
        if word not in OPERATORS:
            words.append(word)
            continue
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words.pop(0)
        if words and not is_file:
            yield words
        words, is_file = [], word == ">"


@functools.cache
def all_commands() -> list[tuple[str, list[str]]]:
    """Every command of every document, with the document."""
    return [
        (name_of(path), words)
        for path in DOCUMENTS
        for block in blocks(path.read_text("utf-8"))
        if block.language == "sh"
        for line in lines_of(block.text)
        for words in commands_of(line)
    ]


def nnasync_commands() -> list[str]:
    return sorted({shlex.join(words[1:]) for _, words in all_commands() if words[0] == "nnasync"})


def is_quick(command: str) -> bool:
    """Whether a command is run here; a process for a device takes seconds to start."""
    return command.startswith(QUICK) and "--isolate" not in command


def test_every_block_says_its_language() -> None:
    found = {
        (name_of(path), block.line, block.language)
        for path in DOCUMENTS
        for block in blocks(path.read_text("utf-8"))
    }
    assert len(found) > 100
    assert {place for place in found if place[2] not in LANGUAGES} == set()


@pytest.mark.parametrize("command", nnasync_commands())
def test_the_parser_takes_it(command: str) -> None:
    parsed = _parser().parse_args(shlex.split(command))
    assert callable(parsed.command)


@pytest.mark.parametrize("line", sorted({shlex.join(w) for _, w in all_commands()}))
def test_what_it_names_is_there(line: str) -> None:
    words = shlex.split(line)
    program = words[0].rpartition("/")[2] or words[0]
    if program in ("python", "python3"):
        assert_module_or_file(words[1:])
    elif program == "pip":
        assert_extras(words[2:])
    elif program == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
        assert words[1] in targets
    else:
        assert program == "nnasync" or program in OF_OTHERS, "enter it among programs of others"


def assert_module_or_file(words: list[str]) -> None:
    if words[0] == "-m":
        assert importlib.util.find_spec(words[1]), words
    elif words[0] != "-c":
        places = [ROOT, *(ROOT / "examples" / "apps").iterdir()]
        found = [place / words[0] for place in places if (place / words[0]).is_file()]
        assert found, words
        code = "".join(path.read_text("utf-8") for path in found)
        options = [word.partition("=")[0] for word in words if word.startswith("--")]
        assert [option for option in options if f'"{option}"' not in code] == []


def assert_extras(words: list[str]) -> None:
    """The extras of what is installed; packages of others are not looked up."""
    for word in words:
        ours = re.fullmatch(r"(?:nnasync|[./]*)(?:\[([\w,]+)\])?", word)
        if ours and ours[1]:
            assert set(ours[1].split(",")) <= set(PROJECT["project"]["optional-dependencies"])


def test_commands_in_the_text_have_their_options() -> None:
    """Those between backticks, and the forms of commands among what is printed."""
    parsers, wrong = cli_doc.commands(), []
    for path in DOCUMENTS:
        for command in in_text(path.read_text("utf-8")):
            found = [name for name in parsers if f"{command} ".startswith(f"{name} ")]
            options = re.findall(r"(?<![\w-])--[a-z][a-z-]*", command)
            if not found and not command.startswith("nnasync COMMAND"):
                wrong.append((name_of(path), command, "no such command"))
            elif found:
                known = parsers[max(found, key=len)]._option_string_actions
                wrong += [(name_of(path), command, each) for each in options if each not in known]
    assert wrong == []


def in_text(text: str) -> Iterator[str]:
    """Commands that stand in sentences, and those at the beginning of lines that are printed."""
    for span in re.findall(r"(?<!`)`(nnasync [^`]+)`(?!`)", text):
        yield " ".join(span.split())
    for block in blocks(text):
        if block.language == "text":
            lines = block.text.replace("\n    ", " ").splitlines()
            yield from (line for line in lines if line.startswith("nnasync "))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a reader is who has the models that documents name."""
    graph = G([floats(1, 4), floats(1, 4)], [Op("TANH", (0,), (1,))], [0], [1])
    (tmp_path / "model.tflite").write_bytes(graphs_file([graph]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", [c for c in nnasync_commands() if is_quick(c)])
def test_it_runs(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("a  # b\n", [["a"]]),
        ("$ a 'b c'\nprinted\n", [["a", "b c"]]),
        ("a && X=1 b | c > d\n", [["a"], ["b"], ["c"]]),
        ("a \\\n    b\n", [["a", "b"]]),
    ],
)
def test_a_shell_reads_it_so(text: str, commands: list[list[str]]) -> None:
    assert [words for line in lines_of(text) for words in commands_of(line)] == commands
