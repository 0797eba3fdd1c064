from __future__ import annotations

import argparse
import json

import psutil
import pytest

from tenonry.errors import ConfigError, LaunchError, TenonryError
from tenonry_bench import own_server
from tenonry_bench.__main__ import main
from tenonry_bench.load import LoadRun, Record
from tenonry_bench.own_server import ServerProcess, start_own_server
from tenonry_bench.serve import workload_from
from tenonry_bench.served import summarise
from tenonry_bench.workload import Workload

LATENCIES = [
    f"{name}_{part}_ms" for name in ("ttft", "tpot", "itl", "e2e") for part in ("p50", "p99")
]


@pytest.fixture
def openai(serve, answers):
    """A server that lists one model and completes every prompt."""

    def reply(_method, path, body):
        if path == "/v1/models":
            return answers.plain(
                200, b'{"object":"list","data":[{"id":"their-name","object":"model"}]}'
            )
        return answers.completion(body)

    return serve(reply)


@pytest.mark.integration
def test_report_about_a_server_that_runs(bench, openai):
    words = (
        "--requests 6 --prompt-len 5 --output-len 3 --concurrency 2 --runs 2 --goodput e2e_ms=60000"
    )
    report, printed = bench("serve", "--base-url", openai.url, *words.split())
    (result,) = report["results"]
    assert report["model"] == "their-name"
    assert report["peer"] == openai.url
    assert result["completed"]["min"] == 6
    assert result["failed"]["max"] == 0
    assert result["requests"] == 6
    assert result["concurrency"] == 2
    assert result["runs"] == 2
    for name in ("output_tok_s", "total_tok_s", "req_s", "wall_s"):
        assert result[name]["min"] > 0, name
    for name in LATENCIES:
        assert result[name]["min"] >= 0, name
    assert result["goodput_req_s"] == result["req_s"]
    assert not {"peak_rss_gib", "server_us_per_tok", "server_cores"} & set(result)
    assert "goodput" in printed
    prompts = [
        json.loads(body)["prompt"]
        for _, path, _, body in openai.requests
        if path.endswith("completions")
    ]
    assert len(prompts) == 6 + 2 * 6  # a warm-up, and both runs
    assert {len(prompt) for prompt in prompts} == {5}


@pytest.mark.integration
def test_an_open_load_at_a_rate(bench, openai):
    words = "--requests 4 --prompt-len 5 --output-len 2 --request-rate 1000 --runs 1 --model mine"
    report, _ = bench("serve", "--base-url", openai.url, *words.split())
    assert report["results"][0]["concurrency"] is None
    assert report["results"][0]["request_rate"] == 1000.0
    assert {
        json.loads(body)["model"] for _, path, _, body in openai.requests if "completions" in path
    } == {"mine"}


@pytest.mark.integration
def test_failures_are_reported_and_the_status_says_so(serve, answers, tmp_path, capsys):
    def reply(_method, _path, body):
        if len(server.requests) % 2:
            return answers.plain(503, b"overloaded")
        return answers.completion(body)

    server = serve(reply)
    words = f"serve --base-url {server.url} --model m --requests 8 --concurrency 1 --runs 1 --prompt-len 4 --output-len 2"  # noqa: E501
    assert main([*words.split(), "--json", str(tmp_path / "r.json")]) == 1
    result = json.loads((tmp_path / "r.json").read_text())["results"][0]
    assert result["completed"]["median"] == 4
    assert result["failed"]["median"] == 4
    assert result["errors"] == {"HttpFailure: status 503: overloaded": 4}
    assert "4 × HttpFailure: status 503" in capsys.readouterr().out


def test_cpu_time_is_per_token_of_requests_that_ended_well():
    runs = [
        LoadRun(
            2.0,
            [Record(output_tokens=100), Record(output_tokens=60, error="lost")],
            server_cpu_s=seconds,
        )
        for seconds in (1.0, 3.0)
    ]
    result = summarise("W6", Workload(2, 3, 4), runs, {}, None)
    assert result.server_us_per_tok.min == 10_000
    assert result.server_us_per_tok.max == 30_000
    assert result.server_cores.min == 0.5
    assert result.server_cores.max == 1.5


def test_a_run_without_any_success_is_an_error():
    runs = [LoadRun(1.0, [Record(error="lost"), Record(error="lost")])]
    with pytest.raises(TenonryError, match=r"W6: every request of a run failed: \{'lost': 2\}"):
        summarise("W6", Workload(2, 3, 4), runs, {}, None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--base-url localhost:8000", "must look like http://"),
        ("--base-url http://127.0.0.1:1 --request-rate 0", "--request-rate 0.0 must be above 0"),
        ("--base-url http://127.0.0.1:1 --goodput speed=1", "the limits are"),
        ("--base-url http://127.0.0.1:1 --name W6", "is this an OpenAI-compatible server"),
        ("--base-url http://127.0.0.1:1 --name W9", "no workload is called 'W9'"),
    ],
)
@pytest.mark.integration
def test_wrong_words_are_explained(words, message, capsys):
    assert main(["serve", *words.split()]) == 1
    assert message in capsys.readouterr().err


def test_flags_change_the_workload():
    names = ("requests", "prompt_len", "output_len", "concurrency", "request_rate")
    base = Workload(10, 20, 30, shared_prefix_len=8)

    def with_flags(**flags):
        return workload_from(argparse.Namespace(**dict.fromkeys(names) | flags), base)

    assert with_flags() == Workload(10, 20, 30, shared_prefix_len=8, concurrency=16)
    assert with_flags(request_rate=2.0).concurrency is None
    assert with_flags(request_rate=2.0, concurrency=3).concurrency == 3
    assert with_flags(requests=1, prompt_len=9, output_len=2) == Workload(
        1, 9, 2, shared_prefix_len=8, concurrency=16
    )
    with pytest.raises(ConfigError, match="--prompt-len 8 must be above the 8 shared tokens"):
        with_flags(prompt_len=8)


@pytest.mark.integration
def test_our_own_server_from_start_to_stop(bench, model_folder):
    """A real server process on a port it chose, a real engine below it; both gone afterwards."""
    words = "--requests 4 --prompt-len 5 --output-len 6 --concurrency 4 --runs 1 --timeout 25"
    report, printed = bench(
        "serve", "--model", model_folder, "--server-args", "--worker null", *words.split()
    )
    (result,) = report["results"]
    assert result["completed"]["min"] == 4
    assert result["output_tok_s"]["min"] > 0
    assert result["ready_s"] > 0
    assert 0 < result["pss_after_gib"] <= result["peak_rss_gib"]
    assert result["server_us_per_tok"]["min"] > 0
    assert 0 < result["server_cores"]["min"] <= psutil.cpu_count()
    assert "µs per output token" in printed
    assert report["args"] == {"model": str(model_folder), "server_args": "--worker null"}
    assert psutil.Process().children() == []


FAKE = """
import signal, sys, time
print("fake", *sys.argv[1:], flush=True)
{body}
"""


@pytest.fixture
def fake_command(monkeypatch, tmp_path):
    """In place of `tenonry`: a script with this body."""
    import sys

    def install(body: str) -> None:
        script = tmp_path / "fake.py"
        script.write_text(FAKE.format(body=body))
        monkeypatch.setattr(own_server, "tenonry_command", lambda: [sys.executable, str(script)])

    return install


def wait_for(server: ServerProcess, timeout_s: float):
    import asyncio

    try:
        return asyncio.run(server.ready(timeout_s))
    finally:
        server.stop()


@pytest.mark.integration
def test_a_server_that_cannot_start_is_quoted(fake_command):
    fake_command("sys.exit('no such model')")
    with pytest.raises(
        LaunchError, match=r"status 1:\nfake serve m --host 127.0.0.1 --port 0 --x\nno such model"
    ):
        wait_for(start_own_server("m", arguments=["--x"]), 20)


@pytest.mark.integration
def test_a_server_that_never_answers_is_given_up_and_killed(fake_command, monkeypatch):
    monkeypatch.setattr(own_server, "STOP_S", 0.2)
    fake_command(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    )
    server = start_own_server("m")
    with pytest.raises(LaunchError, match=r"not ready after 0.3 s"):
        wait_for(server, 0.3)
    assert not psutil.pid_exists(server.pid)


@pytest.mark.integration
def test_the_server_shares_our_session(fake_command):
    """A server in a session of its own would be scheduled apart from its client."""
    import os

    fake_command("time.sleep(60)")
    server = start_own_server("m")
    try:
        assert os.getsid(server.pid) == os.getsid(0)
        assert os.getpgid(server.pid) == os.getpgid(0)
    finally:
        server.stop()
