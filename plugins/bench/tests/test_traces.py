from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

from tenonry.errors import ConfigError
from tenonry_bench import serve as serve_command
from tenonry_bench.__main__ import main
from tenonry_bench.load import LoadRun
from tenonry_bench.serve import of_trace, run_trace
from tenonry_bench.traces import TracedRequest, prompts, read_trace, starts
from tenonry_bench.workload import WorkloadFile

LINES = (
    {"arrival_time": 100.5, "prompt_tokens": 3, "output_tokens": 2, "reason": "stop", "tags": {}},
    {"arrival_time": 100.0, "prompt_tokens": 5, "output_tokens": 4},
    {"arrival_time": 100.2, "prompt_tokens": 5, "output_tokens": 0, "reason": "abort"},
)


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


def test_requests_come_by_arrival_without_those_that_got_no_token(trace):
    found = read_trace([str(trace)])
    assert found == [TracedRequest(100.0, 5, 4), TracedRequest(100.5, 3, 2)]
    assert starts(found, 2.0) == [0.0, 0.25]


def test_files_are_merged(trace, tmp_path):
    other = tmp_path / "trace.jsonl.1"
    other.write_text('{"arrival_time": 100.1, "prompt_tokens": 1, "output_tokens": 1}\n')
    found = read_trace([str(trace), str(other)])
    assert [each.prompt_tokens for each in found] == [5, 1, 3]


def test_prompts_have_the_lengths_of_the_trace_and_depend_on_the_seed(trace):
    found = read_trace([str(trace)])
    made = prompts(found, (10, 20), 1, 0)
    assert [len(each) for each in made] == [5, 3]
    assert made == prompts(found, (10, 20), 1, 0)
    assert made != prompts(found, (10, 20), 2, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}\n", "line 1 is no request of a trace: .*arrival_time"),
        (json.dumps(LINES[0]) + "\n\n", "line 2 is no request"),
        ('{"arrival_time": 1, "prompt_tokens": -1, "output_tokens": 1}\n', "line 1 .*>= 0"),
        ("\xff\n", "line 1 is no request"),
        ("", "no request has prompt and output tokens"),
    ],
)
def test_defect_of_a_trace_is_named(tmp_path, text, message):
    path = tmp_path / "t.jsonl"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=message):
        read_trace([str(path)])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--trace missing.jsonl", "--trace missing.jsonl cannot be read: No such file"),
        ("--trace t --requests 3", "--requests does not go with --trace"),
        ("--trace t --request-rate 3", "--request-rate does not go with --trace"),
        ("--speed 0", "--speed 0.0 must be above 0"),
        ("--speed nan", "--speed nan must be above 0"),
    ],
)
def test_wrong_flags_are_explained(words, message, capsys):
    assert main(["serve", "--base-url", "http://127.0.0.1:1", *words.split()]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.integration
def test_requests_of_a_trace_are_sent_with_its_lengths(serve, answers, bench, trace):
    server = serve(lambda _method, _path, body: answers.completion(body))
    words = f"--base-url {server.url} --model m --trace {trace} --speed 100 --runs 2"
    report, printed = bench("serve", *words.split())
    (result,) = report["results"]
    assert result["workload"] == "trace"
    assert result["requests"] == 2
    assert result["completed"]["min"] == 2
    assert "trace" in printed
    bodies = [json.loads(body) for *_, body in server.requests][-4:]
    lengths = [(len(body["prompt"]), body["max_tokens"]) for body in bodies]
    assert sorted(lengths) == [(3, 2), (3, 2), (5, 4), (5, 4)]


def test_prompts_of_a_run_are_made_after_the_run_before_it(trace, monkeypatch):
    events = []

    def make(*args):
        events.append("prompts")
        return prompts(*args)

    class RecordedLoad:
        async def run(self, made, lengths, times=()):
            events.append("run" if times else "warm-up")
            return LoadRun(1.0, [])

    monkeypatch.setattr(serve_command, "prompts", make)
    found = read_trace([str(trace)])
    workloads = WorkloadFile(seed=1, token_range=(5, 50), workloads={"trace": of_trace(found)})
    args = SimpleNamespace(speed=1.0, runs=2)
    asyncio.run(run_trace(RecordedLoad(), workloads, found, args, 50, None))
    assert events == ["warm-up", "prompts", "run", "prompts", "run"]
