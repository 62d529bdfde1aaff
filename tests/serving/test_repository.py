"""Models of a folder: found, exchanged, broken, gone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import anyio
import pytest

import nnasync as nn
from nnasync.errors import InvalidArgument
from nnasync.serving import ModelServer, ServeOptions, ServingError
from nnasync.serving.json_protocol import decoded
from nnasync.serving.messages import ModelIndexEntry
from nnasync.serving.model_files import found_in
from tests.rigs import SHAPE, doubler, gated, runtime, until
from tests.serving.rig import QUIET, body, outcomes

pytestmark = pytest.mark.anyio

LOADING = ServeOptions(poll_s=0, allow_load=True)


def times(factor: float) -> nn.Model:
    """A model of output y = factor x."""
    builder = nn.ModelBuilder("times")
    builder.output("y", builder.mul(builder.input("x", SHAPE), factor))
    return builder.build()


def save(folder: Path, name: str, model: nn.Model, settings: str = "") -> Path:
    path = folder / f"{name}.nnm"
    nn.save(model, path)
    if settings:
        path.with_suffix(".toml").write_text(settings)
    return path


async def asked(server: ModelServer, model: str, version: str = "") -> list[float]:
    """What a model makes of 1, 2, 3, 4."""
    content = json.dumps(body()).encode()
    answer = await server.infer(decoded(content, None, server.limits, model, version))
    (output,) = answer.outputs
    assert output.array is not None
    return [float(value) for value in output.array.ravel()]


async def test_models_and_their_settings(tmp_path: Path) -> None:
    save(tmp_path, "twice", times(2))
    save(tmp_path, "many", times(3), 'name = "thrice"\nversion = "7"\npriority = "high"\n')
    save(tmp_path, "twice@10", times(20))
    async with runtime() as rt, ModelServer(rt, folder=tmp_path, options=QUIET) as server:
        assert [(entry.name, entry.version, entry.state) for entry in server.index()] == [
            ("thrice", "7", "READY"),
            ("twice", "1", "READY"),
            ("twice", "10", "READY"),
        ]
        assert await asked(server, "thrice") == [3, 6, 9, 12]
        assert await asked(server, "twice") == [20, 40, 60, 80]
        assert await asked(server, "twice", "1") == [2, 4, 6, 8]
        assert server.model_metadata("twice").versions == ("1", "10")
        assert server.models.find("thrice").net.priority is nn.Priority.HIGH


async def test_broken_models_are_served_without_and_the_index_says_why(tmp_path: Path) -> None:
    save(tmp_path, "fine", times(2))
    (tmp_path / "broken.tflite").write_bytes(b"nothing")
    save(tmp_path, "odd", times(2), "prioritty = 1\n")
    save(tmp_path, "names", times(2), 'name = "../x"\n')
    save(tmp_path, "twin", times(2), 'name = "fine"\n')
    async with runtime() as rt, ModelServer(rt, folder=tmp_path, options=QUIET) as server:
        assert await asked(server, "fine") == [2, 4, 6, 8]
        assert [entry.name for entry in server.index(ready=True)] == ["fine"]
        reasons = {entry.name: entry.reason for entry in server.index() if entry.reason}
        assert "broken.tflite" in reasons["broken"]
        assert "prioritty" in reasons["odd"]
        assert "../x" in reasons["names"]
        assert "fine.nnm is version 1 of 'fine' already" in reasons["twin"]
        assert all(entry.state == "UNAVAILABLE" for entry in server.index() if entry.reason)


async def test_a_changed_model_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    save(tmp_path, "model", times(2))
    async with runtime() as rt, ModelServer(rt, folder=tmp_path, options=QUIET) as server:
        old = server.models.find("model").net
        save(tmp_path, "model", times(3))
        await server.repository.look(at_once=False)
        assert await asked(server, "model") == [2, 4, 6, 8]  # it may be written still
        await server.repository.look(at_once=False)
        assert await asked(server, "model") == [3, 6, 9, 12]
        await until(lambda: old._closed)
        (tmp_path / "model.nnm").write_bytes(b"broken")
        for _ in range(2):
            await server.repository.look(at_once=False)
        assert await asked(server, "model") == [3, 6, 9, 12]
        (entry,) = server.index()
        assert (entry.state, "model.nnm" in entry.reason) == ("READY", True)
        (tmp_path / "model.nnm").unlink()
        await server.repository.look(at_once=False)
        with pytest.raises(ServingError, match="'model' is not found"):
            await asked(server, "model")
        await until(lambda: server.index() == [])


async def test_a_model_that_was_just_replaced_is_closed_with_the_server(tmp_path: Path) -> None:
    save(tmp_path, "model", times(2))
    async with runtime() as rt:
        async with ModelServer(rt, folder=tmp_path, options=QUIET) as server:
            old = server.models.find("model").net
            save(tmp_path, "model", times(3))
            await server.repository.look(at_once=True)
        assert old._closed


async def test_requests_that_run_are_answered_by_the_version_that_has_them(tmp_path: Path) -> None:
    save(tmp_path, "model", doubler())
    engine = gated()
    async with runtime(engine) as rt, ModelServer(rt, folder=tmp_path, options=LOADING) as server:
        results: list[list[float]] = []

        async def ask() -> None:
            results.append(await asked(server, "model"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await until(lambda: engine.counters.waiting == 1)
            old = server.models.find("model")
            await server.unload("model")
            assert server.index() == [ModelIndexEntry("model", "1", "UNLOADING")]
            await server.load("model")
            assert server.models.find("model") is not old
            assert not old.net._closed
            engine.gate.open_wide()
        assert results == [[2, 4, 6, 8]]
        await until(lambda: old.net._closed)
        assert outcomes(server, "model") == {"completed": 1}


async def test_loading_and_unloading_by_request(tmp_path: Path) -> None:
    save(tmp_path, "model", times(2))
    async with runtime() as rt, ModelServer(rt, folder=tmp_path, options=LOADING) as server:
        await server.unload("model")
        await server.unload("nope")
        await server.repository.look(at_once=True)
        with pytest.raises(ServingError, match="'model' is not found"):
            await asked(server, "model")
        await until(lambda: server.index()[0].state == "UNAVAILABLE")
        assert server.index()[0].reason == "unloaded"
        await server.load("model")
        assert await asked(server, "model") == [2, 4, 6, 8]
        assert server.repository._unloaded == set()
        for name in ("", "nope", "../model", str(tmp_path / "model")):
            with pytest.raises(ServingError, match="failed to poll from model repository"):
                await server.load(name)
        (tmp_path / "model.nnm").write_bytes(b"broken")
        with pytest.raises(ServingError, match="failed to load 'model'"):
            await server.load("model")
        assert await asked(server, "model") == [2, 4, 6, 8]
        with pytest.raises(ServingError, match="takes none by request"):
            await server.load("model", {"file:1/model.onnx": "AAAA"})


async def test_loading_has_to_be_allowed(tmp_path: Path) -> None:
    save(tmp_path, "model", times(2))
    async with runtime() as rt, ModelServer(rt, folder=tmp_path, options=QUIET) as server:
        for call in (server.load, server.unload):
            with pytest.raises(ServingError, match="not allowed"):
                await call("model")


async def test_a_folder_is_watched(tmp_path: Path) -> None:
    options = ServeOptions(poll_s=0.005)
    async with runtime() as rt, ModelServer(rt, folder=tmp_path, options=options) as server:
        save(tmp_path, "late", times(2))
        await until(lambda: server.model_ready("late"))
        assert await asked(server, "late") == [2, 4, 6, 8]


async def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    async with runtime() as rt:
        server = ModelServer(rt, folder=tmp_path / "nope", options=QUIET)
        with pytest.raises(BaseException) as caught:
            await server.__aenter__()
        assert isinstance(caught.value, OSError)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ("version = 1", "str"),
        ('version = "x"', "whole number"),
        ("instances = -1", "0 or more"),
        ('labels = { y = "../secret" }', "no path"),
        ('labels = { y = "nope.txt" }', "names.toml: labels: [Errno 2]"),
        ("max_queue_size = 0", "1 or more"),
        ("\xff", "names"),
        ("=", "Invalid"),
        (
            "prioritty = 1",
            "names.toml: Object contains unknown field `prioritty`; the keys are name, version",
        ),
        ("batching = { size = 8 }", "; the keys are window_us, max_size, when"),
        ('priority = "urgent"', "; it may be high, medium, low"),
        ('batching = { when = "never" }', "; it may be pays, always"),
        ('datatypes = { x = "INT8" }', "; it may be FP16, BF16, FP32"),
        ("timeout_ms = inf", "names.toml: timeout_ms must be 0 or more, below"),
        ("batching = { max_size = 0 }", "batching.max_size"),
        ("batching = { window_us = nan }", "batching.window_us"),
    ],
)
def test_settings_that_are_wrong(tmp_path: Path, settings: str, text: str) -> None:
    save(tmp_path, "names", doubler(), settings)
    (file,) = found_in(tmp_path, [])
    assert text in file.problem


def test_a_version_in_the_name_of_a_file_that_is_none(tmp_path: Path) -> None:
    save(tmp_path, "names@x", doubler())
    (file,) = found_in(tmp_path, [])
    assert file.problem.endswith(
        "names@x.nnm: the version of a model, behind the @, is a whole number"
    )


async def test_what_nobody_reads_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "wrods.toml").write_text('priority = "high"')
    save(tmp_path, "shout", times(2)).rename(tmp_path / "SHOUT.NNM")
    async with runtime() as rt, ModelServer(rt, folder=tmp_path, options=QUIET) as server:
        texts = [record.getMessage() for record in caplog.records]
        assert len(texts) == 3
        assert texts[0].endswith(
            "has no models, which are files that end in .tflite, .onnx or .nnm"
        )
        assert "SHOUT.NNM is not served: its name ends in .NNM, not in .nnm" in texts[1]
        assert "wrods.toml: nobody reads these settings" in texts[2]
        caplog.clear()
        save(tmp_path, "words", times(2))
        for _ in range(2):
            await server.repository.look(at_once=True)
        (tmp_path / "wrods.toml").rename(tmp_path / "words.toml")
        await server.repository.look(at_once=True)
        assert caplog.records == []
        assert server.models.find("words").priority is nn.Priority.HIGH


def test_labels_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("one\ntwo\n")
    save(tmp_path, "names", doubler(), 'labels = { y = "labels.txt" }')
    (file,) = found_in(tmp_path, [])
    assert file.settings.labels == {"y": ("one", "two")}


def test_files_that_are_no_models(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    assert found_in(tmp_path, []) == []
    with pytest.raises(InvalidArgument, match="a model ends in"):
        found_in(None, [tmp_path / "notes.txt"])
    (file,) = found_in(None, [tmp_path / "nope.nnm"])
    assert "nope" in file.problem
    pathlike = os.fsencode(tmp_path) + b"/\xff.nnm"
    with open(pathlike, "wb"):
        assert found_in(tmp_path, []) == []


async def test_a_named_file_must_be_there_at_the_start(tmp_path: Path) -> None:
    async with runtime() as rt:
        with pytest.raises(OSError, match="nope"):
            await ModelServer(rt, [tmp_path / "nope.nnm"], options=QUIET).__aenter__()


@pytest.mark.parametrize("settings", ["version = ", f"labels = {'[' * 20_000}"])
async def test_settings_that_break_leave_what_is_served(
    tmp_path: Path, settings: str, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, "a", times(2), 'name = "words"\nversion = "3"')
    async with runtime() as rt, ModelServer(rt, folder=tmp_path, options=QUIET) as server:
        save(tmp_path, "a", times(2), settings)
        for _ in range(2):
            await server.repository.look(at_once=False)
        assert await asked(server, "words", "3") == [2, 4, 6, 8]
        (entry,) = server.index(ready=True)
        assert (entry.name, entry.version) == ("words", "3")
        assert "a.toml" in entry.reason
        assert [record.getMessage() for record in caplog.records].count(
            f"model words, version 3: {entry.reason}"
        ) == 1


async def test_a_second_file_for_a_model_does_not_hide_it(tmp_path: Path) -> None:
    save(tmp_path, "w", times(2))
    (tmp_path / "w.onnx").write_bytes(b"")
    async with runtime() as rt, ModelServer(rt, folder=tmp_path, options=QUIET) as server:
        (entry,) = server.index(ready=True)
        assert entry.name == "w"
        (other,) = [each for each in server.index() if each.state != "READY"]
        assert "already" in other.reason


async def test_a_watch_goes_on_whatever_the_folder_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ServeOptions(poll_s=0.005)
    async with runtime() as rt, ModelServer(rt, folder=tmp_path, options=options) as server:
        looks = 0

        def odd(*arguments: Any) -> list[Any]:
            nonlocal looks
            looks += 1
            raise (InvalidArgument("too many") if looks == 1 else RuntimeError("odd"))

        monkeypatch.setattr("nnasync.serving.repository.found_in", odd)
        await until(lambda: looks > 2)
        monkeypatch.undo()
        save(tmp_path, "late", times(2))
        await until(lambda: server.model_ready("late"))
