"""Tool calls and reasoning of chats over the fake engine, whose answers are scripted: SO-3, SO-4."""

from __future__ import annotations

import json
from typing import ClassVar

import openai
import pytest

from tenonry.errors import ConfigError, PluginNotFound, RequestError
from tenonry.sampling_params import SamplingParams, StructuredOutput
from tenonry_openai_server.protocol.reader import AnswerForm, HiddenTexts
from tenonry_output_parsers.base import Tool

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
SAY = {"type": "function", "function": {"name": "say", "description": "Says it."}}
ANSWER = (
    "<think>\nHm.\n</think>\n\nI add.\n"
    '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n'
    '<tool_call>\n{"name": "say", "arguments": {"text": "é🦊"}}\n</tool_call>'
)
MESSAGES = [{"role": "user", "content": "hi"}]
PATH = "/v1/chat/completions"


@pytest.fixture
def api(make_api):
    api = make_api(output_parser="think+hermes")
    api.engine.answer = ANSWER
    return api


@pytest.fixture
def thinking(api, monkeypatch):
    """The same with a chat template that begins the reasoning."""
    render = api.engine.io_processor.render_chat

    def begun(messages, **kwargs):
        prompt = render(messages, **kwargs)
        return {**prompt, "prompt": prompt["prompt"] + "<think>\n"}

    monkeypatch.setattr(api.engine.io_processor, "render_chat", begun)
    return api


def ask(api, **fields):
    body = {"messages": MESSAGES, "tools": [ADD, SAY], "max_tokens": 1000, **fields}
    response = api.post(PATH, body)
    assert response.status_code == 200, response.text
    return response.json()["choices"]


def streamed(api, **fields):
    """(message, finish reason) per choice, assembled as clients do it."""
    body = {"messages": MESSAGES, "tools": [ADD, SAY], "max_tokens": 1000, **fields}
    found: dict[int, tuple[dict, list]] = {}
    for event in api.stream(PATH, body)[:-1]:
        for choice in json.loads(event)["choices"]:
            message, ends = found.setdefault(choice["index"], ({"tool_calls": []}, []))
            ends += [choice["finish_reason"]] * (choice["finish_reason"] is not None)
            delta = choice["delta"]
            for name in ("content", "reasoning_content", "reasoning"):
                if name in delta:
                    message[name] = message.get(name, "") + delta[name]
            for call in delta.get("tool_calls", []):
                calls = message["tool_calls"]
                if call["index"] == len(calls):
                    calls.append(
                        {"id": call["id"], "type": call["type"], "function": dict(call["function"])}
                    )
                else:
                    assert call["index"] == len(calls) - 1
                    calls[-1]["function"]["arguments"] += call["function"]["arguments"]
    return [(message, *ends) for message, ends in found.values()]


def without_ids(calls):
    return [call["function"] for call in calls]


CALLS = [{"name": "add", "arguments": '{"a": 1}'}, {"name": "say", "arguments": '{"text": "é🦊"}'}]


def test_whole_answer_has_reasoning_text_and_calls(api):
    (choice,) = ask(api)
    message = choice["message"]
    assert message["content"] == "I add."
    assert message["reasoning_content"] == message["reasoning"] == "Hm."
    assert without_ids(message["tool_calls"]) == CALLS
    assert choice["finish_reason"] == "tool_calls"
    ids = {call["id"] for call in message["tool_calls"]}
    assert len(ids) == 2
    assert all(each.startswith("call_") for each in ids)


def test_stream_brings_what_the_whole_answer_has(api):
    ((message, reason),) = streamed(api)
    assert message["content"] == "I add."
    assert message["reasoning_content"] == message["reasoning"] == "Hm."
    assert without_ids(message["tool_calls"]) == CALLS
    assert reason == "tool_calls"


def test_each_choice_has_a_parser_of_its_own(api):
    for message, reason in streamed(api, n=3):
        assert without_ids(message["tool_calls"]) == CALLS
        assert reason == "tool_calls"
    assert [without_ids(choice["message"]["tool_calls"]) for choice in ask(api, n=3)] == [CALLS] * 3


def test_usage_logprobs_and_ids_cover_all_tokens(api):
    body = {
        "messages": MESSAGES,
        "tools": [ADD],
        "max_tokens": 1000,
        "stream_options": {"include_usage": True},
        "logprobs": True,
        "return_token_ids": True,
    }
    chunks = [json.loads(event) for event in api.stream(PATH, body)[:-1]]
    assert chunks[-1]["usage"]["completion_tokens"] == len(ANSWER)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    ids = [token for choice in choices for token in choice.get("token_ids", [])]
    assert ids == [ord(character) for character in ANSWER]
    tokens = [
        entry["token"]
        for one in choices
        for entry in (one["logprobs"] or {"content": []})["content"]
    ]
    assert "".join(tokens) == ANSWER


def test_tools_reach_the_template_and_the_prompt_is_seen(api):
    ask(api, reasoning_effort="low", chat_template_kwargs={"x": 1})
    _, kwargs = api.engine.io_processor.seen
    assert kwargs["tools"] == [ADD, SAY]
    assert kwargs["chat_template_kwargs"] == {"x": 1, "reasoning_effort": "low"}
    ask(api, reasoning_effort="none")
    _, kwargs = api.engine.io_processor.seen
    assert kwargs["chat_template_kwargs"] == {"reasoning_effort": "none", "enable_thinking": False}


def test_forbidden_calls_are_text_and_tools_are_not_shown(api):
    (choice,) = ask(api, tool_choice="none")
    assert "tool_calls" not in choice["message"]
    assert '{"name": "add"' in choice["message"]["content"]
    assert choice["finish_reason"] == "stop"
    assert "tools" not in api.engine.io_processor.seen[1]


def test_one_call_at_most(api):
    (choice,) = ask(api, parallel_tool_calls=False)
    assert without_ids(choice["message"]["tool_calls"]) == CALLS[:1]
    ((message, _),) = streamed(api, parallel_tool_calls=False)
    assert without_ids(message["tool_calls"]) == CALLS[:1]


def test_reasoning_can_be_left_out(api):
    (choice,) = ask(api, include_reasoning=False)
    assert "reasoning" not in choice["message"]
    assert choice["message"]["content"] == "I add."


@pytest.mark.parametrize("end", range(0, len(ANSWER), 7))
def test_answer_that_is_cut_off(end, api):
    api.engine.answer = ANSWER[:end] + "…"
    (choice,) = ask(api, max_tokens=max(end, 1))
    ((message, reason),) = streamed(api, max_tokens=max(end, 1))
    assert choice["finish_reason"] == reason == "length"
    whole = choice["message"]
    assert message.get("content", "") == (whole["content"] or "")
    assert without_ids(message["tool_calls"]) == without_ids(whole.get("tool_calls", []))


def test_an_id_that_the_model_writes_is_the_calls_id_once(make_api):
    api = make_api(output_parser="kimi")
    call = "<|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    api.engine.answer = f"<|tool_calls_section_begin|>{call}{call}<|tool_calls_section_end|>"
    (choice,) = ask(api)
    ((message, _),) = streamed(api)
    for calls in (choice["message"]["tool_calls"], message["tool_calls"]):
        first, second = (each["id"] for each in calls)
        assert first == "functions.add:0"
        assert second.startswith("call_")


def test_content_is_null_beside_calls_alone(api):
    api.engine.answer = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    (choice,) = ask(api)
    assert choice["message"]["content"] is None


def test_parser_that_fails_fails_the_one_request(make_api, tmp_path):
    path = tmp_path / "broken.py"
    path.write_text(
        "from tenonry_output_parsers.base import OutputParser\n"
        "class Broken(OutputParser):\n"
        "    def feed(self, text, token_ids):\n"
        "        raise ZeroDivisionError('at 0x7f')\n"
        "    def close(self):\n"
        "        return []\n"
    )
    api = make_api(output_parser=f"{path}:Broken")
    response = api.post(PATH, {"messages": MESSAGES})
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "plugin_failed"
    assert "0x7f" not in response.text


def allowed(*names, mode="auto"):
    """The choice among some of the tools."""
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize(
    ("fields", "param", "word"),
    [
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name", "pattern"),
        ({"tools": [{"type": "functions", "function": {"name": "a"}}]}, "tools.0", "did you mean function?"),
        ({"tools": [{"type": "function", "name": "a", "parameters": {}}]}, "tools.0", "function is missing"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, None, "functions among them"),
        ({"tools": [ADD, ADD]}, None, "two functions named 'add'"),
        ({"tools": [ADD] * 129}, "tools", "at most 128"),
        ({"tools": "add"}, "tools", "list"),
        ({"tool_choice": "sometimes"}, "tool_choice", "required"),
        ({"tool_choice": {"type": "custom", "custom": {"name": "add"}}}, "tool_choice", "of the type function"),
        ({"tool_choice": allowed("sub")}, None, "names 'sub'; the tools of this request are: add, say"),
        ({"tool_choice": "required", "tools": []}, None, "tools"),
        ({"tool_choice": {"type": "function", "function": {"name": "sub"}}}, None, "add, say"),
        ({"reasoning_effort": "a lot"}, "reasoning_effort", "high"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls", "bool"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(fields, param, word, api):
    body = {"messages": MESSAGES, "tools": [ADD, SAY], **fields}
    response = api.post(PATH, body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert word in error["message"]
    assert param is None or error["param"].startswith(param)


@pytest.mark.parametrize("kind", [{}, {"type": None}])
def test_tool_without_a_type_is_a_function(api, kind):
    tool = {name: value for name, value in ADD.items() if name != "type"}
    assert api.post(PATH, {"messages": MESSAGES, "tools": [{**tool, **kind}]}).status_code == 200
    assert api.engine.io_processor.seen[1]["tools"] == [ADD]


def test_tools_that_are_no_functions_are_left_out_and_named(api):
    tools = [{"type": "web_search"}, ADD, {"type": "mcp", "server_label": "x"}]
    response = api.post(PATH, {"messages": MESSAGES, "tools": tools, "tool_choice": "auto"})
    assert response.status_code == 200, response.text
    named = response.headers["x-tenonry-ignored"].split(", ")
    assert {"tools[0] (web_search)", "tools[2] (mcp)"} <= set(named)
    _, kwargs = api.engine.io_processor.seen
    assert kwargs["tools"] == [ADD]


def test_schema_that_is_nested_too_deeply_is_refused(api):
    schema: dict = {"type": "object"}
    for _ in range(40):
        schema = {"type": "array", "items": schema}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    response = api.post(PATH, {"messages": MESSAGES, "tools": [tool]})
    assert response.status_code == 400
    assert "nested more than 32" in response.json()["error"]["message"]


def test_schema_that_is_too_large_is_refused(api):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"x": "y" * (1 << 20)}}}
    response = api.post(PATH, {"messages": MESSAGES, "tools": [tool]})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools"


class TestChoice:
    TEMPLATE = '{% for tool in tools %}<tool_call>{{ tool }}{% endfor %}"arguments" <think>'

    def test_auto_looks_at_the_template(self, make_api, monkeypatch):
        api = make_api()
        assert api.state.parsers is None
        monkeypatch.setattr(api.engine.io_processor, "chat_template", lambda: self.TEMPLATE)
        api.state.choose_parsers(api.engine)
        assert api.state.parsers.name == "think+hermes"

    def test_none_is_none(self, make_api, monkeypatch):
        api = make_api(output_parser="none")
        monkeypatch.setattr(api.engine.io_processor, "chat_template", lambda: self.TEMPLATE)
        api.state.choose_parsers(api.engine)
        assert api.state.parsers is None

    def test_familiar_names_of_the_two_halves(self, make_api):
        api = make_api(tool_call_parser="qwen3_coder", reasoning_parser="qwen3")
        assert api.state.parsers.name == "think+qwen-coder"
        assert make_api(tool_call_parser="openai").state.parsers.name == "harmony"

    def test_name_that_is_none_is_refused_with_what_there_is(self, make_api):
        with pytest.raises(PluginNotFound, match="hermes"):
            make_api(output_parser="hermess")

    def test_too_many_are_refused(self, make_api):
        with pytest.raises(ConfigError, match="at most 4"):
            make_api(output_parser="+".join(["think"] * 5))


class TestHiddenTexts:
    TEXTS: ClassVar = {1: "<s>", 2: "<|end|>"}

    def read(self, parts):
        hidden = HiddenTexts(lambda token: self.TEXTS.get(token, ""))
        *most, last = parts
        shown = [hidden.without(text, ids, is_last=False) for text, ids in most]
        return "".join([*shown, hidden.without(*last, is_last=True)])

    def test_the_text_of_a_hidden_token_goes(self):
        assert self.read([("a<s>b", [97, 1, 98]), ("<|end|>", [2])]) == "ab"

    def test_the_same_text_of_ordinary_tokens_stays(self):
        assert self.read([("a<s>b", [97, 60, 98])]) == "a<s>b"

    def test_text_may_come_later_and_in_parts(self):
        assert self.read([("a", [97, 1]), ("<", []), ("s", []), (">b", [98]), ("", [])]) == "ab"

    def test_text_that_never_comes_holds_nothing_back_at_the_end(self):
        assert self.read([("a<", [97, 1]), ("", [])]) == "a<"


def test_official_client_reads_calls(make_live):
    live = make_live(output_parser="think+hermes")
    live.call(lambda: setattr(live.engine, "answer", ANSWER))
    with openai.OpenAI(base_url=live.url + "/v1", api_key="none", max_retries=0) as client:
        fields = {"model": "fake", "messages": MESSAGES, "tools": [ADD, SAY], "max_tokens": 1000}
        message = client.chat.completions.create(**fields).choices[0].message
        assert [call.function.name for call in message.tool_calls] == ["add", "say"]
        with client.chat.completions.stream(**fields) as stream:
            for _ in stream:
                pass
            final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    assert final.message.content == "I add."
    assert [
        (call.function.name, json.loads(call.function.arguments))
        for call in final.message.tool_calls
    ] == [("add", {"a": 1}), ("say", {"text": "é🦊"})]


GRAMMAR_PARSER = """
from tenonry import StructuredOutput
from tenonry_output_parsers.scanning import ScanningParser
from tenonry_output_parsers.text_input import check_marks

MARKS = check_marks("!")


class Shout(ScanningParser):
    reads_calls = True

    @classmethod
    def grammar(cls, tools, *, parallel):
        return StructuredOutput(regex="!" + "|".join(tool.name for tool in tools))

    def read(self):
        while (yield from self.source.until(MARKS, self.text)):
            name, _ = yield from self.source.collect(MARKS)
            self.start_call(name)
            self.arguments("{}")
            self.end_call()
"""


LISTS = {"type": "object", "properties": {"l": {"type": "array"}}}
WITH_LISTS = [
    {"type": "function", "function": {"name": name, "parameters": LISTS}} for name in ("add", "say")
]


class TestDemandedCalls:
    FORCED = '[{"name": "say", "arguments": {"text": "x"}}, {"name": "add", "arguments": {"a": 2}}]'

    @pytest.fixture
    def api(self, make_api):
        """With a format that cannot hold the schemas of `WITH_LISTS`."""
        return make_api(output_parser="think+glm")

    def schema(self, api):
        return json.loads(api.engine.received[-1].params.structured_output.json)

    @pytest.mark.parametrize("stream", [False, True])
    def test_required(self, stream, api):
        api.engine.answer = self.FORCED
        if stream:
            ((message, reason),) = streamed(api, tool_choice="required", tools=WITH_LISTS)
        else:
            (choice,) = ask(api, tool_choice="required", tools=WITH_LISTS)
            message, reason = choice["message"], choice["finish_reason"]
        assert [call["name"] for call in without_ids(message["tool_calls"])] == ["say", "add"]
        assert reason == "tool_calls"
        assert not message.get("content")
        schema = self.schema(api)
        assert [form["properties"]["name"]["const"] for form in schema["items"]["anyOf"]] == [
            "add",
            "say",
        ]
        assert "maxItems" not in schema

    def test_one_by_name(self, api):
        api.engine.answer = '[{"name": "say", "arguments": {}}]'
        choice = {"type": "function", "function": {"name": "say"}}
        (answer,) = ask(api, tool_choice=choice, parallel_tool_calls=False, tools=WITH_LISTS)
        assert without_ids(answer["message"]["tool_calls"]) == [{"name": "say", "arguments": "{}"}]
        schema = self.schema(api)
        assert schema["items"]["properties"]["name"] == {"const": "say"}
        assert schema["maxItems"] == 1

    def test_one_of_the_allowed(self, api):
        api.engine.answer = '[{"name": "say", "arguments": {}}]'
        choice = allowed("say", mode="required")
        (answer,) = ask(api, tool_choice=choice, tools=WITH_LISTS)
        assert without_ids(answer["message"]["tool_calls"]) == [{"name": "say", "arguments": "{}"}]
        assert self.schema(api)["items"]["properties"]["name"] == {"const": "say"}

    def test_reasoning_that_the_prompt_began_comes_first(self, thinking):
        thinking.engine.answer = "Hm.\n</think>" + self.FORCED
        for fields in ({}, {"truncate_prompt_tokens": 20}):  # as text, and cut to token ids
            (choice,) = ask(thinking, tool_choice="required", tools=WITH_LISTS, **fields)
            assert choice["message"]["reasoning_content"] == "Hm."
            assert len(choice["message"]["tool_calls"]) == 2
            start = thinking.engine.received[-1].params.structured_output.start_after
            assert start == tuple(map(ord, "</think>"))

    def test_a_format_holds_after_the_reasoning_that_the_prompt_began(self, thinking):
        thinking.engine.answer = 'Hm.\n</think>{"a": 1}'
        for fields, start in (
            ({"response_format": {"type": "json_object"}}, "</think>"),
            ({"structured_outputs": {"json_object": True, "start_after": [33]}}, "!"),
        ):
            (choice,) = ask(thinking, tools=None, **fields)
            assert choice["message"]["reasoning_content"] == "Hm."
            assert choice["message"]["content"] == '{"a": 1}'
            spec = thinking.engine.received[-1].params.structured_output
            assert spec == StructuredOutput(json_object=True, start_after=tuple(map(ord, start)))

    def test_a_format_holds_at_once_where_there_is_no_reasoning(self, api):
        ask(api, tools=None, response_format={"type": "json_object"})
        spec = api.engine.received[-1].params.structured_output
        assert spec == StructuredOutput(json_object=True)

    def test_parser_with_a_grammar_of_its_own_reads_its_own_format(self, make_api, tmp_path):
        path = tmp_path / "shout.py"
        path.write_text(GRAMMAR_PARSER)
        api = make_api(output_parser=f"{path}:Shout")
        api.engine.answer = "!say!"
        (choice,) = ask(api, tool_choice="required")
        assert without_ids(choice["message"]["tool_calls"]) == [{"name": "say", "arguments": "{}"}]
        assert api.engine.received[-1].params.structured_output.regex == "!add|say"

    def test_first_party_format_with_a_grammar_is_read_as_such(self, make_api):
        api = make_api(output_parser="think+hermes")
        api.engine.answer = ANSWER
        (choice,) = ask(api, tool_choice="required")
        assert choice["finish_reason"] == "tool_calls"
        assert "<tool_call>" in api.engine.received[-1].params.structured_output.grammar

    @pytest.mark.parametrize(
        ("strict", "parser"),
        [(True, "hermes"), (False, "hermes"), (True, "glm"), (True, "mistral"), (True, "llama")],
    )
    def test_a_strict_tool_bounds_the_calls_of_a_free_answer(self, make_api, strict, parser):
        api = make_api(output_parser=parser)
        api.engine.answer = "No call."
        tool = {**ADD, "function": {**ADD["function"], "strict": strict}}
        (choice,) = ask(api, tools=[tool])
        assert choice["message"]["content"] == "No call."
        spec = api.engine.received[-1].params.structured_output
        assert (spec is not None) is (strict and parser != "llama")
        if spec is not None:
            assert "head[lazy]" in spec.grammar

    def test_a_format_besides_is_refused(self, api):
        form = AnswerForm(api.state.parsers, (Tool("add"),), wanted=(Tool("add"),))
        params = SamplingParams(structured_output=StructuredOutput(json_object=True))
        with pytest.raises(RequestError, match="tool_choice requires calls"):
            form.forced("prompt", params)
