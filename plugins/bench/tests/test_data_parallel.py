from __future__ import annotations

import psutil
import pytest

from tenonry_bench.__main__ import main
from tenonry_bench.data_parallel import (
    COORDINATED,
    STATIC,
    coordinator_ratio,
    layouts_for,
    summarise,
)
from tenonry_bench.layouts import alternated
from tenonry_bench.streams import Point


def point(frontend: float, engine: float, wall: float = 1.0) -> Point:
    return Point(
        tokens=1000,
        wall_s=wall,
        frontend_cpu_s=frontend,
        engine_cpu_s=engine,
        ttft_p50_s=0.1,
        tpot_p50_s=0.1,
        chunks=9,
    )


@pytest.mark.integration
def test_report(bench, model_folder):
    """One engine, two, and two with a coordinator, at the same time: each counts its own processes only."""
    words = "--sizes 1 --streams 4 --prompt-len 8 --output-len 6 --runs 2"
    report, printed = bench("data-parallel", *words.split(), "--model", model_folder)
    assert report["bench"] == "data-parallel"
    assert report["streams"] == 4
    assert report["runs"] == 2
    found = [
        (one["engines"], one["coordinated"], one["load_balancing"], one["processes"])
        for one in report["results"]
    ]
    assert found == [
        (1, False, "affinity", 2),
        (2, False, "round-robin", 3),
        (2, True, "affinity", 4),
    ]
    for result in report["results"]:
        for name in (
            "tok_s",
            "us_per_tok",
            "frontend_us_per_tok",
            "engine_us_per_tok",
            "cores",
            "ttft_ms",
        ):
            assert 0 < result[name]["min"] <= result[name]["median"] <= result[name]["max"], name
        assert result["us_per_tok"]["max"] < sum(
            one["us_per_tok"]["max"] for one in report["results"]
        )
    assert report["coordinator_ratio"]["n"] == 2
    assert "coordinator and affinity over round robin" in printed
    assert psutil.Process().children() == []


def test_sums_of_one_layout():
    rounds = [{STATIC: point(0.002, 0.004, wall=0.5)}, {STATIC: point(0.004, 0.006)}]
    result = summarise(STATIC, 3, rounds)
    assert result.us_per_tok.min == pytest.approx(6)
    assert result.us_per_tok.max == pytest.approx(10)
    assert result.frontend_us_per_tok.min == pytest.approx(2)
    assert result.engine_us_per_tok.min == pytest.approx(4)
    assert result.tok_s.min == 1000
    assert result.tok_s.max == 2000
    assert result.cores.min == pytest.approx(0.01)
    assert result.cores.max == pytest.approx(0.012)


def test_the_ratio_is_taken_run_by_run():
    """A machine that is twice as slow in the second run changes nothing."""
    rounds = [{STATIC: point(k, k), COORDINATED: point(1.5 * k, k)} for k in (1.0, 2.0)]
    ratio = coordinator_ratio(rounds)
    assert ratio.min == 1.25
    assert ratio.max == 1.25
    assert ratio.n == 2


def test_layouts_take_turns():
    assert [alternated([1, 2, 3], run) for run in range(3)] == [[1, 2, 3], [3, 2, 1], [1, 2, 3]]
    assert [layout.engines for layout in layouts_for([1, 2, 1, 4], "affinity")] == [1, 2, 4, 2, 2]


def test_no_engine_is_refused(capsys):
    for verb in ("data-parallel", "start-engines"):
        assert main([verb, "--sizes", "0"]) == 1
        assert "--sizes 0: at least one engine" in capsys.readouterr().err
