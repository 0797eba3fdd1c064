"""Requests of coding agents and chat clients against a real server: served, with ignored parts in the header.

Each is sent unchanged, and again with the server's answer: text, a call that a grammar demands, and a call that
`max_tokens` cut, so that its arguments are no JSON.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
BODIES = sorted((Path(__file__).parent / "bodies").glob("*.json"))
WITH_TOOLS = [file for file in BODIES if json.loads(file.read_text("utf-8"))["body"].get("tools")]
ENDS = {
    "/v1/messages": "message_stop",
    "/v1/responses": ("response.completed", "response.incomplete"),
    "/v1/chat/completions": "[DONE]",
}


class Answer(NamedTuple):
    """Answer of a server, and the parts of the request that it ignored."""

    text: str
    ignored: list[str]

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Agent:
    """A client of the server with the conversation of one file."""

    def __init__(self, file: Path, url: str) -> None:
        recorded = json.loads(file.read_text("utf-8"))
        self.path: str = recorded["path"].partition("?")[0]
        self.ignored: list[str] = recorded["ignored"]
        self.body: dict[str, Any] = {**recorded["body"], "model": "tiny"}
        self._url = url
        self._target = recorded["path"]
        self._headers = {"content-type": "application/json", **recorded["headers"]}

    def send(self, target: str = "", **fields: Any) -> Answer:
        body = {**self.body, **fields}
        if not body.get("stream"):
            body.pop("stream_options", None)  # which OpenAI and this server reject without a stream
        url = self._url + (target or self._target)
        request = urllib.request.Request(url, json.dumps(body).encode(), self._headers)
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                named = response.headers.get("x-tenonry-ignored", "")
                return Answer(response.read().decode(), named.split(", ") if named else [])
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{error.code}: {error.read().decode()}") from None

    def demand(self, name: str, properties: dict[str, Any], max_tokens: int) -> Answer:
        """An answer that must be a call of one more tool, whole or cut."""
        schema = {"type": "object", "properties": properties, "additionalProperties": False}
        schema["required"] = list(properties)
        messages, responses = (self.path == f"/v1/{api}" for api in ("messages", "responses"))
        function = {"name": name, "parameters": schema, "strict": True}
        tool: Any = {"type": "function", "function": function}
        choice: Any = {"type": "function", "function": {"name": name}}
        if messages:
            tool = {"name": name, "input_schema": schema, "strict": True}
            choice = {"type": "tool", "name": name, "disable_parallel_tool_use": True}
        elif responses:
            tool = {"type": "function", **function}
            choice = {"type": "function", "name": name}
        self.body.pop("max_completion_tokens", None)
        limits: dict[str, Any] = {"max_output_tokens" if responses else "max_tokens": max_tokens}
        if not messages:
            limits["parallel_tool_calls"] = False
        tools = [*self.body.get("tools", ()), tool]
        return self.send(stream=False, tools=tools, tool_choice=choice, **limits)


@pytest.fixture(params=BODIES, ids=lambda file: file.stem)
def agent(request: pytest.FixtureRequest, agent_server) -> Agent:
    return Agent(request.param, agent_server.url)


@pytest.mark.nightly_after(2)
def test_request_is_served_and_names_what_is_ignored(agent):
    answer = agent.send()
    assert sorted(answer.ignored) == sorted(agent.ignored)
    assert answer.text.rstrip().splitlines()[-1].startswith("data: ")
    ends = ENDS[agent.path]
    assert any(end in answer.text for end in ([ends] if isinstance(ends, str) else ends))


def test_conversation_continues_with_the_answer(agent):
    answer = agent.send(stream=False)
    assert sorted(answer.ignored) == sorted(agent.ignored)
    CONTINUE[agent.path](agent, answer.json)
    CONTINUE[agent.path](agent, agent.send(stream=False).json)
    assert sorted(agent.send().ignored) == sorted(agent.ignored)


FINISH = {"done": {"type": "boolean"}}
WRITE = {"text": {"type": "string", "minLength": 1000}}


@pytest.mark.nightly_after(3)
@pytest.mark.parametrize("agent", WITH_TOOLS, ids=lambda file: file.stem, indirect=True)
@pytest.mark.parametrize(("name", "properties"), [("finish", FINISH), ("write", WRITE)])
def test_conversation_continues_with_a_call_whole_or_cut(agent, name, properties):
    answer = agent.demand(name, properties, max_tokens=100)
    arguments = CONTINUE[agent.path](agent, answer.json)
    assert arguments is not None, "the answer holds no call"
    assert is_object(arguments) == (name == "finish")
    assert sorted(agent.send().ignored) == sorted(agent.ignored)


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def test_tokens_of_claude_codes_requests_are_counted(agent_server):
    for file in BODIES:
        agent = Agent(file, agent_server.url)
        if agent.path == "/v1/messages":
            assert agent.send("/v1/messages/count_tokens").json["input_tokens"] > 10


# Each adds an answer and the results of its calls as its client does; returns the arguments of the call, if any.


def continue_messages(agent: Agent, message: dict[str, Any]) -> str | None:
    history = agent.body["messages"]
    content = message["content"]
    history.append({"role": "assistant", "content": content})
    calls = [block for block in content if block["type"] == "tool_use"]
    results = [
        {"type": "tool_result", "tool_use_id": call["id"], "content": "Done."} for call in calls
    ]
    history.append({"role": "user", "content": [*results, {"type": "text", "text": "And now?"}]})
    if not calls:
        return None
    (given,) = [call["input"] for call in calls]
    return given["INVALID_JSON"] if "INVALID_JSON" in given else json.dumps(given)


def continue_responses(agent: Agent, response: dict[str, Any]) -> str | None:
    history = agent.body["input"]
    history += response["output"]
    calls = [item for item in response["output"] if item["type"] == "function_call"]
    history += [
        {"type": "function_call_output", "call_id": call["call_id"], "output": "Done."}
        for call in calls
    ]
    history.append({"role": "user", "content": [{"type": "input_text", "text": "And now?"}]})
    return calls[0]["arguments"] if calls else None


def continue_chat(agent: Agent, completion: dict[str, Any]) -> str | None:
    history = agent.body["messages"]
    message = completion["choices"][0]["message"]
    history.append(message)
    calls = message.get("tool_calls", [])
    history += [{"role": "tool", "tool_call_id": call["id"], "content": "Done."} for call in calls]
    history.append({"role": "user", "content": "And now?"})
    return calls[0]["function"]["arguments"] if calls else None


CONTINUE: dict[str, Callable[[Agent, dict[str, Any]], str | None]] = {
    "/v1/messages": continue_messages,
    "/v1/responses": continue_responses,
    "/v1/chat/completions": continue_chat,
}
