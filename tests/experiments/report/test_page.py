"""The report needs nothing else, is well formed, and shows no markup of others."""

from __future__ import annotations

import json
import re

from msgspec.structs import replace

from nnasync.experiments.report.page import page
from tests.experiments.rigs import served
from tests.experiments.test_results import results
from tests.pages.reader import read


def test_a_page_needs_no_other_file() -> None:
    html = page(results(("simulated", "real")))
    reader = read(html)
    assert reader.addresses == []
    assert not re.search(r"https?://|@import|url\(", html)
    assert len(reader.ids) == len(set(reader.ids))
    assert {"sweep", "latency", "cores", "queue", "truth", "figures"} <= set(reader.ids)


def test_what_the_script_looks_for_is_there() -> None:
    html = page(results())
    wanted = set(re.findall(r'getElementById\("([\w-]+)"\)', html))
    assert wanted <= set(read(html).ids)


def test_simulations_alone_have_nothing_to_be_compared_with() -> None:
    assert "truth" not in read(page(results())).ids


def test_points_that_are_not_within_ten_percent_are_told() -> None:
    told = results(("simulated", "real"))
    slow = tuple(
        replace(run, result=served("real", seed=run.repeat, slower=3.0))
        if run.result.kind == "real" and run.point == 0
        else run
        for run in told.runs
    )
    html = page(replace(told, runs=slow))
    assert "Errors beyond their limit are marked below." in html
    assert '<td class="far">' in html
    assert '<td class="word">outside</td>' in html


def test_how_often_points_were_run_is_told_of_each_kind() -> None:
    told = results(("simulated", "real"))
    fewer = tuple(
        run for run in told.runs if (run.result.kind, run.point, run.repeat) != ("real", 0, 1)
    )
    assert "2 simulated, 1 to 2 real" in page(replace(told, runs=fewer))


def test_whiskers_have_the_confidence_of_the_looks_that_there_are() -> None:
    told = results(("simulated", "real"))
    assert "whiskers are 95 % confidence" in page(told)
    more = replace(told, experiment=replace(told.experiment, real_repeats=6, real_most=24))
    assert "whiskers are 98.3 % confidence" in page(more)


def test_a_single_point_has_no_charts_along_a_sweep() -> None:
    alone = results()
    runs = tuple(replace(run, values={}) for run in alone.runs if run.point == 0)
    ids = read(page(replace(alone, runs=runs))).ids
    assert "sweep" not in ids
    assert {"latency", "cores", "figures"} <= set(ids)


def test_notes_of_runs_are_told_once() -> None:
    told = results()
    runs = tuple(
        replace(run, result=replace(run.result, notes=("the policy failed",))) for run in told.runs
    )
    assert page(replace(told, runs=runs)).count("the policy failed") == 1


def test_company_during_real_runs_is_told() -> None:
    alone = results(("real",))
    assert "real runs others had" not in page(alone)
    busy = [replace(run, others=0.4) for run in alone.runs[:2]]
    html = page(replace(alone, runs=(*busy, *alone.runs[2:])))
    assert "During 2 real runs others had up to 40%" in html


def test_texts_do_not_end_the_data() -> None:
    told = results()
    experiment = replace(told.experiment, title="</script><b>", about="<img>")
    values = [replace(run, values={"policy": "</script><b>"}) for run in told.runs]
    html = page(replace(told, experiment=experiment, runs=tuple(values)))
    read(html)
    assert html.count("</script>") == 2
    data = re.search(r'id="data">(.*?)</script>', html, re.DOTALL)
    assert data is not None
    assert json.loads(data[1])["runs"][0]["label"].startswith("policy </script>")
