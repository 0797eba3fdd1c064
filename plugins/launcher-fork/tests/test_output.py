"""Lines that plugins print in an engine's process begin with the engine's name."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest

from tenonry import AsyncLLM, EngineConfig, SamplingParams
from tenonry_launcher_fork import output
from tenonry_launcher_fork.output import LinePrefix

PRINTING = """
import sys

from tenonry_scheduler_batching import SchedulingPolicy


class Printing(SchedulingPolicy):
    def order(self, request):
        print("queued", request.arrival)
        print("one\\ntwo", end="", file=sys.stderr)
        print(" three", file=sys.stderr)
        return request.arrival
"""


def written(*texts: str) -> str:
    stream = io.StringIO()
    prefixed = LinePrefix(stream.write, lambda: "engine 3")
    assert [prefixed.write(text) for text in texts] == [len(text) for text in texts]
    return stream.getvalue()


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["a\n"], "[engine 3] a\n"),
        (["a", "b", "\n", "c\n"], "[engine 3] ab\n[engine 3] c\n"),
        (["a\nb\n\nc"], "[engine 3] a\n[engine 3] b\n[engine 3] \n[engine 3] c"),
        (["10 %\r", "20 %\r", "done\n"], "[engine 3] 10 %\r20 %\rdone\n"),
        ([""], ""),
        (["W 07:00:00 [engine 3] slow\nTrace\n"], "W 07:00:00 [engine 3] slow\n[engine 3] Trace\n"),
    ],
    ids=repr,
)
def test_each_line_has_the_name_once(texts: list[str], expected: str):
    assert written(*texts) == expected


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("tenonry: engine 3", "engine 3"),
        ("tenonry: engine 3 epoch 2 fallback scheduler x", "engine 3"),
        ("tenonry: standby 1", "standby 1"),
    ],
)
def test_the_name_is_that_of_the_title(monkeypatch: pytest.MonkeyPatch, title: str, name: str):
    monkeypatch.setattr(output, "getproctitle", lambda: title)
    assert output.process_name() == name


@pytest.mark.integration
def test_what_a_policy_prints_has_the_name_of_its_engine(tmp_path: Path, capfd):
    policy = tmp_path / "printing.py"
    policy.write_text(PRINTING)
    engine = AsyncLLM(EngineConfig(model="demo", scheduling_policy=f"{policy}:Printing"))

    async def main() -> None:
        params = SamplingParams(max_tokens=2, temperature=0)
        async for _ in engine.generate([5, 6], params, "r"):
            pass

    try:
        asyncio.run(main())
    finally:
        engine.shutdown()
    out, err = capfd.readouterr()
    assert "[engine 0] queued 1\n" in out.splitlines(keepends=True)
    assert {"[engine 0] one\n", "[engine 0] two three\n"} <= set(err.splitlines(keepends=True))
    assert err.count("[engine 0] engine 0 of tenonry") == 1  # a line of the log stays as it is
    assert "[engine 0] I " not in err
