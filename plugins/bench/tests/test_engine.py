from __future__ import annotations

import builtins

import psutil
import pytest

from tenonry.errors import ConfigError
from tenonry_bench.__main__ import main
from tenonry_bench.engine import event_loop

pytestmark = pytest.mark.integration

SPREADS = ("tok_s", "frontend_us_per_tok", "engine_us_per_tok", "ttft_ms", "tpot_ms", "wall_s")


@pytest.mark.parametrize("loop", ["asyncio", "auto"])
def test_report(bench, model_folder, loop):
    """A real engine process, real sockets, real text; only the worker computes nothing."""
    words = "--streams 5 --prompt-len 8 --output-len 12 --runs 2 --round-trips 3"
    report, printed = bench("engine", *words.split(), "--model", model_folder, "--event-loop", loop)
    for name in SPREADS:
        figure = report[name]
        assert 0 <= figure["min"] <= figure["median"] <= figure["max"], name
        assert figure["max"] > 0 or name == "tpot_ms", (
            name
        )  # all tokens of a stream may come in one piece
    assert report["round_trip_ms"]["n"] == 3
    assert 0 < report["round_trip_ms"]["p50"] <= report["round_trip_ms"]["p99"]
    assert report["bench"] == "engine"
    assert report["streams"] == 5
    assert report["runs"] == 2
    assert 5 <= report["chunks"]["min"] <= report["chunks"]["max"] <= 60
    assert report["settings"]["worker"]["name"] == "null"
    assert report["machine"]["cpu"]
    assert report["event_loop"] in ("asyncio", "uvloop")
    assert "tokens per second" in printed
    assert psutil.Process().children() == []


def test_round_trips_can_be_left_out(bench, model_folder):
    words = "--streams 1 --prompt-len 1 --output-len 1 --runs 1 --round-trips 0 --no-gc-freeze"
    report, printed = bench("engine", *words.split(), "--model", model_folder)
    assert report["round_trip_ms"] is None
    assert report["gc_freeze"] is False
    assert "round trip" not in printed


def test_requests_that_do_not_fit_are_refused_before_anything_starts(model_folder, capsys):
    assert (
        main(["engine", "--prompt-len", "200", "--output-len", "100", "--model", str(model_folder)])
        == 1
    )
    assert "need 300, but max_model_len is 256" in capsys.readouterr().err


def test_requests_cut_short_are_an_error(model_folder, capsys, monkeypatch):
    """A token that ends the request, and a client that does not ignore it."""
    from tenonry_bench import streams

    honest = streams.SamplingParams
    monkeypatch.setattr(
        streams, "SamplingParams", lambda **fields: honest(**fields | {"ignore_eos": False})
    )
    words = [
        "engine",
        "--streams",
        "1",
        "--output-len",
        "5",
        "--prompt-len",
        "4",
        "--worker-option",
        "token_id=2",
    ]
    assert main([*words, "--worker", "null", "--model", str(model_folder)]) == 1
    assert "delivered 1 of 5 tokens" in capsys.readouterr().err


def test_uvloop_is_optional(monkeypatch):
    real = builtins.__import__

    def without_uvloop(name, *rest, **more):
        if name == "uvloop":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_uvloop)
    assert event_loop("auto") == ("asyncio", None)
    with pytest.raises(ConfigError, match="pip install uvloop"):
        event_loop("uvloop")
