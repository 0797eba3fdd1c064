"""The conformance suite of commands, and the summary of two requests."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from tenonry.errors import ConfigError
from tenonry_testkit.command import CommandContract

from trace_summary.plugin import TraceSummary

FIRST = {"prompt_tokens": 3, "output_tokens": 4, "queued_s": 0.001, "ttft_s": 0.01, "e2e_s": 0.1}
SECOND = FIRST | {"queued_s": 0.003, "ttft_s": None}


class TestTraceSummary(CommandContract):
    command = "trace_summary.plugin:TraceSummary"


def run(file: Path) -> int:
    parser = argparse.ArgumentParser()
    command = TraceSummary()
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(file)]))


def test_it_summarises_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text(f"{json.dumps(FIRST)}\n{json.dumps(SECOND)}\n", "utf-8")
    assert run(file) == 0
    assert capsys.readouterr().out.splitlines() == [
        "2 requests, 6 prompt and 8 output tokens",
        "queued  median 2.0 ms, maximum 3.0 ms",
        "ttft    median 10.0 ms, maximum 10.0 ms",
        "e2e     median 100.0 ms, maximum 100.0 ms",
    ]


@pytest.mark.parametrize("text", ["no trace", "[]", '{"prompt_tokens": 3}'])
def test_a_file_that_is_no_trace_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=r"requests\.jsonl.*jsonl"):
        run(file)
