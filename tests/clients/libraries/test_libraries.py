"""Client libraries, unchanged and at pinned versions, against a real server: chat, stream, tools, types, cancel, error.

Each library runs its scenarios in one process, once; each scenario is a test. If calls or typed answers are demanded, a
grammar forces the small model to produce them. The two SDKs are installed with the tests and run for every change; what
others build on them, and Node.js, needs environments of its own and runs at night.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from environments import HERE, Unavailable, node_with, python_with
from server_process import Server

from tenonry_demo_model import model_path
from tenonry_testkit.tiers import nightly_unless

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
COMMON = ("chat", "stream", "tools", "structured", "cancel", "error")
PROGRAMS: dict[str, tuple[str, ...]] = {
    "openai_sdk.py": (*COMMON, "responses"),
    "anthropic_sdk.py": COMMON,
    "openai_agents.py": (*COMMON, "responses"),
    "langchain_openai_chat.py": (*COMMON, "agent"),
    "pydantic_ai_agent.py": COMMON,
    "instructor_models.py": ("structured", "tools", "stream", "error"),
    "litellm_calls.py": COMMON,
    "llama_index_like.py": COMMON,
    "openai_sdk.mjs": (*COMMON, "responses"),
    "ai_sdk.mjs": COMMON,
}
RUNNING = r'tenonry:num_requests_running\{engine="0",model_name="tiny"\}'
INSTALLED = ("openai_sdk.py", "anthropic_sdk.py")
IDS = [f"{program}-{scenario}" for program, names in PROGRAMS.items() for scenario in names]
CASES = nightly_unless(
    lambda program, scenario: program in INSTALLED and scenario in {"stream", "tools", "error"},
    [(program, scenario) for program, names in PROGRAMS.items() for scenario in names],
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server(
        model_path(),
        "--load-format",
        "auto",
        "--device",
        "cpu",
        "--chat-template",
        str(HERE / "tools.jinja"),
    )
    try:
        yield made.ready()
    finally:
        made.close()


@pytest.fixture(scope="module")
def results(server) -> Callable[[str], dict[str, Any]]:
    """Return the scenarios of a program, by name; it runs once."""
    known: dict[str, dict[str, Any]] = {}

    def result(program: str) -> dict[str, Any]:
        if program not in known:
            known[program] = play(program, server.url)
        return known[program]

    return result


def command(program: str) -> list[str]:
    if program.endswith(".mjs"):
        node, folder = node_with("node")
        return [node, str(Path(folder, program))]
    if program in INSTALLED:
        return [sys.executable, str(HERE / "programs" / program)]
    name = "requirements.txt"
    if program.startswith("llama_index"):
        name = "requirements-llama-index.txt"
    return [*python_with(name), str(HERE / "programs" / program)]


def play(program: str, url: str) -> dict[str, Any]:
    try:
        words = command(program)
    except Unavailable as error:
        pytest.skip(str(error))
    ended = subprocess.run(
        [*words, url, "tiny"], capture_output=True, text=True, timeout=300, check=False
    )
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    assert lines, ended.stderr
    return {line["scenario"]: line for line in lines}


@pytest.mark.parametrize(("program", "scenario"), CASES, ids=IDS)
def test_scenario(program: str, scenario: str, results, server):
    found = results(program)[scenario]
    assert "failure" not in found, found["failure"]
    CHECKS[scenario](found["result"], results(program))
    assert server.process.poll() is None


def check_chat(found: dict[str, Any], _: dict[str, Any]) -> None:
    assert "Tokyo" in found["text"]


def check_stream(found: dict[str, Any], others: dict[str, Any]) -> None:
    if "parts" in found:  # a typed answer, completed part by part
        assert found["parts"] > 2
        check_structured(found["last"], others)
        return
    whole = others["chat"]["result"]
    assert found["text"] == whole["text"]
    assert found.get("tokens", whole.get("tokens")) == whole.get("tokens")


def check_tools(found: dict[str, Any], _: dict[str, Any]) -> None:
    assert found["calls"]
    assert found.get("text") or found["output"]


def check_structured(found: dict[str, Any], _: dict[str, Any]) -> None:
    assert isinstance(found["city"], str)
    assert isinstance(found["nights"], int)


def check_error(found: dict[str, Any], _: dict[str, Any]) -> None:
    assert found["status"] == 404
    assert "no-such-model" in found["text"]


def check_responses(found: dict[str, Any], _: dict[str, Any]) -> None:
    assert found["calls"]
    assert found["text"] is not None


CHECKS = {
    "chat": check_chat,
    "agent": check_chat,
    "stream": check_stream,
    "tools": check_tools,
    "structured": check_structured,
    "cancel": lambda found, _: None,
    "error": check_error,
    "responses": check_responses,
}


def test_cancelled_streams_run_no_more(results, server):
    """Each SDK cancels a stream of 1 500 tokens: the engine has nothing left to do afterwards."""
    for program in INSTALLED:
        assert "failure" not in results(program)["cancel"]
    for _ in range(200):
        if not server.metric(RUNNING):
            return
        time.sleep(0.05)
    raise AssertionError(f"{server.metric(RUNNING):.0f} requests still run")
