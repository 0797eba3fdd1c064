from __future__ import annotations

import json

import pytest

from tenonry.errors import ConfigError
from tenonry_bench import standard
from tenonry_bench.__main__ import main
from tenonry_bench.figures import Spread
from tenonry_bench.machine import describe_machine
from tenonry_bench.peers import PeerFigure, peer_figures
from tenonry_bench.standard import (
    PARTS,
    chosen_parts,
    describe,
    figures_from,
    find_models,
    plan,
    run_all,
)
from tenonry_bench.standard_figures import Figure


def spread(median: float) -> dict[str, float]:
    return {"median": median, "min": median - 0.01, "max": median + 0.01, "n": 3}


def case(running: int, *, validator: bool, mean: float) -> dict:
    return {
        "running": running,
        "waiting": 0,
        "validator": validator,
        "mean_ms": spread(mean),
        "p99_ms": spread(9.0),
    }


ENGINE = {
    "bench": "engine",
    "streams": 256,
    "tok_s": spread(200_000.0),
    "frontend_us_per_tok": spread(5.0),
    "engine_us_per_tok": spread(2.0),
    "ttft_ms": spread(20.0),
    "round_trip_ms": {"p50": 0.4, "p99": 0.9, "n": 10},
    "tpot_ms": spread(6.0),
    "step_ms": 0.0,
}
STARTUP = {
    "bench": "startup",
    "model": "m/tiny",
    "startup_s": spread(4.0),
    "import_s": spread(0.3),
    "help_s": spread(0.2),
}
THROUGHPUT = {
    "bench": "throughput",
    "model": "m/tiny",
    "results": [
        {"workload": "W1", "output_tok_s": spread(5000.0)},
        {"workload": "W3", "output_tok_s": spread(1.0)},
    ],
}


def by_label(reports: list[dict], peers=None) -> dict[str, Figure]:
    return {
        row.label: row
        for row in figures_from(reports, peers if peers is not None else peer_figures([]))
    }


def test_targets_of_the_scheduler():
    report = {
        "bench": "scheduler",
        "results": [case(256, validator=v, mean=0.2) for v in (False, True)],
    }
    rows = by_label([report])
    off = rows["scheduler, 256 running, 0 waiting, validator off, ms: mean"]
    on = rows["scheduler, 256 running, 0 waiting, validator on, ms: mean"]
    assert off.target == 0.14
    assert off.met is False
    assert on.target == 0.25
    assert on.met is True
    assert off.ratio == pytest.approx(2.802 / 0.2)
    assert rows["scheduler, 256 running, 0 waiting, validator off, ms: p99"].cells()[2:] == (
        "–",
        "–",
        "–",
        "–",
    )


def test_targets_of_the_engine():
    rows = by_label([ENGINE])
    rate = rows["engine, 256 streams: tokens/s"]
    assert rate.target == 3 * 60355
    assert rate.met is True
    assert rate.ratio == pytest.approx(200_000 / 60355)
    assert rows["engine, 256 streams: front-end µs/token"].met is False
    assert rows["engine, 256 streams: engine µs/token"].met is True
    assert rows["engine, one-token round trip p50, ms"].met is True
    assert by_label([ENGINE | {"streams": 1}])["engine, 1 streams: engine µs/token"].target is None


def test_of_steps_that_take_time_only_their_length_counts():
    rows = by_label([ENGINE | {"step_ms": 5.0}])
    assert list(rows) == ["engine, 256 streams: a step of 5 ms takes, ms"]
    (row,) = rows.values()
    assert row.peer == 8.5
    assert row.ratio == pytest.approx(8.5 / 6.0)


def test_targets_of_start_and_throughput():
    rows = by_label([STARTUP, THROUGHPUT])
    assert rows["process to first token, tiny, s"].met is True
    assert rows["import tenonry over bare Python, s"].met is False
    assert rows["throughput, tiny W1: output tokens/s"].target == pytest.approx(0.7 * 5728)
    assert rows["throughput, tiny W3: output tokens/s"].met is None


def test_targets_of_several_engines():
    layout = {
        "layout": "4 engines",
        "tok_s": spread(9.0),
        "us_per_tok": spread(5.0),
        "cores": spread(1.9),
    }
    rows = by_label(
        [{"bench": "data-parallel", "results": [layout], "coordinator_ratio": spread(1.04)}]
    )
    assert rows["data parallel, 4 engines: cores busy"].target is None
    ratio = rows["coordinator and affinity over round robin, CPU/token"]
    assert ratio.target == 1.05
    assert ratio.met is True


def test_targets_of_a_start_of_several_engines():
    results = [
        {"engines": n, "ready_s": spread(0.5 * n), "ratio": spread(n / 1.5)} for n in (1, 2, 4)
    ]
    rows = by_label([{"bench": "start-engines", "results": results}])
    assert rows["start of engines, 1: ready, s"].ours.median == 0.5
    assert rows["start of engines, 2 over 1"].target is None
    assert rows["start of engines, 4 over 1"].target == 2.2
    assert rows["start of engines, 4 over 1"].met is False


@pytest.mark.parametrize(("ratio", "met"), [(0.95, True), (0.85, False)])
def test_targets_of_affinity_are_lower_bounds(ratio, met):
    layouts = [
        ("1 engine", "affinity"),
        ("4 engines, affinity", "affinity"),
        ("4 engines, round-robin", "round-robin"),
    ]
    results = [
        {"layout": name, "load_balancing": policy, "hit_rate": spread(0.8), "ratio": spread(ratio)}
        for name, policy in layouts
    ]
    rows = by_label([{"bench": "affinity", "results": results}])
    assert rows["prefix hit rate, 1 engine"].ours.median == 0.8
    assert rows["prefix hit rate, 4 engines, affinity over 1 engine"].met is met
    assert rows["prefix hit rate, 4 engines, affinity over 1 engine"].cells()[2] == "≥ 0.9"
    assert rows["prefix hit rate, 4 engines, round-robin over 1 engine"].met is None


def test_rows_of_servers_name_their_flags():
    result = {
        "output_tok_s": spread(900.0),
        "server_us_per_tok": spread(50.0),
        "server_cores": spread(0.5),
    }
    rows = by_label(
        [{"bench": "serve", "args": {"server_args": "--worker null"}, "results": [result]}]
    )
    assert [(label, row.ours.median) for label, row in rows.items()] == [
        ("served, --worker null: tokens/s", 900),
        ("served, --worker null: CPU µs/token", 50),
        ("served, --worker null: cores busy", 0.5),
    ]


def test_without_a_peer_there_is_no_ratio():
    (row,) = by_label([THROUGHPUT | {"results": THROUGHPUT["results"][:1]}], peers={}).values()
    assert row.ratio is None
    assert row.met is None
    assert row.target is None
    assert row.cells() == (row.label, "5,000.0 (5,000.0–5,000.0)", "≥ 0.7 × peer", "–", "–", "–")


@pytest.mark.integration
def test_the_table_names_the_sources():
    peers = {"a": PeerFigure(2.0, "theirs.json"), "b": PeerFigure(1.0, "unused.json")}
    row = Figure(label="speed", key="a", ours=Spread(1.0, 1.0, 1.0), bound=1.5, peer=2.0)
    text = describe([row], peers, describe_machine())
    assert "| speed  | 1.000 | ≤ 1.5  | yes | 2.000 | 2.00  |" in text
    assert "peer: theirs.json." in text


def test_the_plan_covers_every_part_and_uses_tiny(monkeypatch):
    monkeypatch.setattr(standard, "longest_sequence", lambda _model: 256)
    commands = plan(list(PARTS), {"small": "d/small", "tiny": "d/tiny"}, quick=False, runs=2)
    assert list(commands) == [
        "scheduler", "engine, 1 streams", "engine, 256 streams", "engine, 1024 streams",
        "engine, 1 streams, steps of 5 ms", "engine, 256 streams, steps of 5 ms", "startup", "loading", "start-engines",
        "data-parallel", "affinity", "serve, --worker null",
        "serve, --worker null --data-parallel-size 4 --api-server-count 2", "throughput, small", "throughput, tiny",
    ]  # fmt: skip
    assert commands["engine, 256 streams"][-2:] == ["--runs", "2"]
    for part in ("startup", "start-engines", "data-parallel", "affinity"):
        assert "d/tiny" in commands[part]
        assert commands[part][-2:] == ["--runs", "2"]
    assert "d/small" not in commands["engine, 1 streams"]
    assert commands["engine, 1 streams"][4] == "224"  # 1024 would not fit behind a prompt of 32
    assert list(plan(["startup"], {"demo": "demo"}, quick=True, runs=None)) == ["startup"]


@pytest.mark.integration
def test_models_are_folders_with_a_configuration(tmp_path, model_folder):
    assert find_models(None) == {"demo": "demo"}
    assert find_models(str(model_folder.parent)) == {"words": str(model_folder)}
    with pytest.raises(ConfigError, match=r"no folder in it holds a config\.json"):
        find_models(str(tmp_path))


def test_an_unknown_part_is_refused():
    assert chosen_parts("engine,startup") == ["engine", "startup"]
    with pytest.raises(ConfigError, match="'speed' is none of scheduler"):
        chosen_parts("engine,speed")


@pytest.mark.integration
def test_a_part_that_fails_leaves_the_others(capsys):
    words = "scheduler --waiting 0 --steps 3 --runs 1 --running"
    reports, failures = run_all({"good": [*words.split(), "2"], "bad": [*words.split(), "0"]})
    assert [report["bench"] for report in reports] == ["scheduler"]
    assert list(failures) == ["bad"]
    assert "at least one request has to run" in failures["bad"]


@pytest.mark.integration
def test_the_quick_set_from_end_to_end(model_folder, tmp_path, capsys):
    file = tmp_path / "report.json"
    words = [
        "--quick",
        "--only",
        "scheduler,engine",
        "--models",
        str(model_folder.parent),
        "--json",
        str(file),
    ]
    assert main(words) == 0
    report = json.loads(file.read_text())
    assert [part["bench"] for part in report["reports"]] == ["scheduler", "engine", "engine"]
    assert report["failures"] == {}
    assert report["figures"]
    printed = capsys.readouterr().out
    assert printed.count("\n| ") == len(report["figures"])
    assert "figure" in printed.splitlines()[0]
