from __future__ import annotations

import json

import pytest

from tenonry.errors import ConfigError
from tenonry_bench.peers import PUBLISHED, PUBLISHED_SOURCE, more_is_better, peer_figures


def spread(median: float) -> dict[str, float]:
    return {"median": median, "min": median, "max": median, "n": 3}


ASYNC = {
    "mode": "async",
    "args": {"model": "data/models/tiny"},
    "results": [
        {"round_trip_ms": {"p50": 1.5, "p99": 2.5}},
        {
            "streams": 256,
            "out_len": 128,
            "tok_s": spread(50_000.0),
            "frontend_us_per_tok": spread(10.0),
            "engine_us_per_tok": spread(12.0),
            "ttft_p50_ms": spread(60.0),
        },
    ],
}
SCHEDULER = {"mode": "scheduler", "args": {}, "results": [{"running": 256, "pair": spread(2500.0)}]}
OFFLINE = {
    "peer": "vllm",
    "args": {"model": "data/models/tiny"},
    "results": [
        {"workload": "W1", "output_tok_s": spread(5000.0)},
        {"workload": "W5", "startup_s": spread(30.0)},
    ],
}
OURS = {
    "bench": "scheduler",
    "results": [
        {"running": 256, "waiting": 0, "validator": False, "mean_ms": spread(0.2)},
        {"running": 256, "waiting": 0, "validator": True, "mean_ms": spread(0.3)},
    ],
}


@pytest.fixture
def write(tmp_path):
    def to_file(name: str, data: object) -> str:
        path = tmp_path / name
        path.write_text(json.dumps(data))
        return str(path)

    return to_file


def test_published_figures_stand_where_nothing_was_measured():
    figures = peer_figures([])
    assert {key: figure.value for key, figure in figures.items()} == PUBLISHED
    assert {figure.source for figure in figures.values()} == {PUBLISHED_SOURCE}


def test_measured_figures_replace_them(write):
    figures = peer_figures(
        [write("a.json", ASYNC), write("s.json", SCHEDULER), write("o.json", OFFLINE)]
    )
    assert figures["engine/256/tok_s"] == (50_000.0, "a.json")
    assert figures["engine/256/ttft_ms"] == (60.0, "a.json")
    assert figures["engine/round_trip_ms"] == (1.5, "a.json")
    assert figures["scheduler/256"] == (2.5, "s.json")
    assert figures["throughput/tiny/W1"] == (5000.0, "o.json")
    assert figures["startup/tiny"] == (30.0, "o.json")
    assert figures["engine/1024/tok_s"].source == PUBLISHED_SOURCE


def test_an_engine_whose_steps_take_time_is_another_figure(write):
    results = [{"round_trip_ms": {"p50": 9.0}}, ASYNC["results"][1] | {"tpot_p50_ms": spread(8.0)}]
    figures = peer_figures(
        [write("slow.json", ASYNC | {"args": {"step_ms": 5.0}, "results": results})]
    )
    assert figures["engine/256/step 5 ms/tpot_ms"] == (8.0, "slow.json")
    assert {figure.source for key, figure in figures.items() if "step" not in key} == {
        PUBLISHED_SOURCE
    }


def test_of_several_files_the_better_figure_counts(write):
    def offline(rate: float, start: float) -> dict:
        results = [
            {"workload": "W1", "output_tok_s": spread(rate)},
            {"workload": "W5", "startup_s": spread(start)},
        ]
        return OFFLINE | {"results": results}

    files = [
        write("a.json", offline(4000, 20)),
        write("b.json", offline(6000, 30)),
        write("c.json", offline(5000, 25)),
    ]
    figures = peer_figures(files)
    assert figures["throughput/tiny/W1"] == (6000, "b.json")
    assert figures["startup/tiny"] == (20, "a.json")


def test_a_report_of_ours_can_be_the_peer(write):
    assert peer_figures([write("ours.json", OURS)])["scheduler/256"] == (0.2, "ours.json")
    engine = ASYNC["results"][1] | {
        "bench": "engine",
        "round_trip_ms": None,
        "ttft_ms": spread(5.0),
    }
    figures = peer_figures([write("engine.json", engine)])
    assert figures["engine/256/ttft_ms"] == (5.0, "engine.json")
    startup = {"bench": "startup", "model": "x/tiny", "startup_s": spread(3.0)}
    assert peer_figures([write("startup.json", startup)])["startup/tiny"] == (3.0, "startup.json")
    assert "startup/x" not in peer_figures(
        [write("none.json", startup | {"model": "x", "startup_s": None})]
    )


@pytest.mark.parametrize(
    "text", ["no json", "[1]", '{"mode": "async"}', '{"peer": "x", "results": [{}]}']
)
def test_another_file_is_refused_by_name(tmp_path, text):
    path = tmp_path / "strange.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"strange\.json is no measurement"):
        peer_figures([str(path)])
    with pytest.raises(ConfigError, match=r"gone\.json cannot be read"):
        peer_figures([str(tmp_path / "gone.json")])


def test_rates_are_better_when_larger_and_times_when_smaller():
    larger = {key for key in PUBLISHED if more_is_better(key)}
    assert larger == {
        key for key in PUBLISHED if key.endswith("tok_s") or key.startswith("throughput/")
    }
