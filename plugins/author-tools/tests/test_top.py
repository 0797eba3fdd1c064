"""`tenonry top`: rates and percentiles between two looks at the metrics of a server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from tenonry.cli import main
from tenonry.errors import LaunchError
from tenonry_author_tools.samples import HISTOGRAMS, percentiles, read_samples, summary
from tenonry_commands.screen import screen
from tenonry_stat_logger_prometheus import metric_table

LABELS = 'model_name="demo",engine="0"'
USED = (
    "num_requests_running",
    "num_requests_waiting",
    "prompt_tokens_total",
    "generation_tokens_total",
    "request_success_total",
    "kv_cache_usage_perc",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "num_preemptions_total",
    "plugin_info",
)


def exposition(tokens: int, fast: int, slow: int) -> str:
    name = f"tenonry:{HISTOGRAMS['TTFT']}"
    return f"""
# TYPE tenonry:num_requests_running gauge
tenonry:num_requests_running{{{LABELS}}} 3
tenonry:num_requests_running{{model_name="demo",engine="1"}} 4
# TYPE tenonry:kv_cache_usage_perc gauge
tenonry:kv_cache_usage_perc{{{LABELS}}} 0.25
# TYPE tenonry:generation_tokens counter
tenonry:generation_tokens_total{{{LABELS}}} {tokens}
# TYPE tenonry:prefix_cache_queries counter
tenonry:prefix_cache_queries_total{{{LABELS}}} {2 * tokens}
# TYPE tenonry:prefix_cache_hits counter
tenonry:prefix_cache_hits_total{{{LABELS}}} {tokens}
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{{LABELS}}} 3
# TYPE {name} histogram
{name}_bucket{{{LABELS},le="0.1"}} {fast}
{name}_bucket{{{LABELS},le="0.2"}} {fast + slow}
{name}_bucket{{{LABELS},le="+Inf"}} {fast + slow}
# TYPE tenonry:plugin_info gauge
tenonry:plugin_info{{kind="scheduler",name="mine",distribution="d",version="2"}} 1
"""


def test_rates_and_percentiles_are_of_the_interval():
    before, now = read_samples(exposition(100, 5, 0)), read_samples(exposition(140, 5, 10))
    found = summary(before, now, 2.0)
    assert (found["running"], found["output_tokens_per_s"], found["model"]) == (7, 20.0, "demo")
    assert (found["kv_cache_usage"], found["prefix_cache_hits"]) == (0.25, 0.5)
    assert found["latency_s"]["TTFT"]["p50"] == pytest.approx(0.15)
    assert found["latency_s"]["ITL"]["p50"] is None
    assert found["plugins"] == ["scheduler mine 2"]
    lines = screen("http://there", found)
    assert "7 running, 0 waiting" in lines
    assert "20.0 output tokens/s" in lines
    assert "p50 150.0 ms" in lines
    assert "scheduler mine 2" in lines


def test_a_server_that_restarted_begins_anew():
    assert percentiles({0.1: 50.0}, {0.1: 4.0, 0.2: 4.0})["p50"] == pytest.approx(0.05)
    samples = read_samples(exposition(10, 1, 1))
    assert summary(read_samples(exposition(99, 1, 1)), samples, 1.0)["output_tokens_per_s"] == 0


def test_values_beyond_the_last_bound_count_as_that():
    assert percentiles({}, {0.1: 0.0, float("inf"): 4.0})["p99"] == pytest.approx(0.1)


def test_every_metric_is_one_of_the_server():
    known = {name.removeprefix("tenonry:") for name, *_ in metric_table()}
    assert {*USED, *HISTOGRAMS.values()} <= known


def test_text_that_is_no_exposition_is_refused():
    with pytest.raises(LaunchError, match="cannot be read"):
        read_samples("a b c d\n")


@pytest.fixture
def url() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = exposition(1, 1, 0).encode()
            self.send_response(200 if self.path == "/metrics" else 404)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: Any) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_once_for_scripts_and_for_people(url: str, capsys):
    assert main(["top", "--url", url, "--interval", "0", "--once", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["running"] == 7
    assert main(["top", "--url", url, "--interval", "0", "--once"]) == 0
    assert capsys.readouterr().out.startswith(f"{url}\nmodel        demo\n")


def test_a_server_that_is_not_there(capsys):
    assert main(["top", "--url", "http://127.0.0.1:1", "--once"]) == 1
    assert "cannot be reached" in capsys.readouterr().err


@pytest.mark.parametrize("interval", ["-1", "nan", "inf", "1e300", "soon"])
def test_an_interval_is_a_time_to_wait(interval: str, capsys):
    with pytest.raises(SystemExit):
        main(["top", "--interval", interval])
    assert f"argument --interval: '{interval}' is not" in capsys.readouterr().err
