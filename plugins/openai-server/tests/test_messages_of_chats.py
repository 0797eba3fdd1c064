"""Messages of POST /v1/chat/completions as passed to the IO processor, in the forms of OpenAI and other servers."""

from __future__ import annotations

import json

import pytest

PATH = "/v1/chat/completions"
USER = {"role": "user", "content": "hi"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}


def seen(api, *messages):
    """The messages after the user's first, as the IO processor got them."""
    response = api.post(PATH, {"messages": [USER, *messages]})
    assert response.status_code == 200, response.text
    assert "x-tenonry-ignored" not in response.headers
    return api.engine.io_processor.seen[0][1:]


@pytest.mark.parametrize(
    "fields",
    [
        {"content": None, "tool_calls": []},
        {"content": None, "reasoning_content": "2+2"},
        {"content": None, "reasoning": "2+2"},
        {"content": None, "thinking": "2+2"},
        {"content": None, "refusal": "No."},
        {"content": None},
        {"content": []},
        {},
        {"reasoning": "2+2"},
        {"refusal": "No."},
        {"tool_calls": [CALL]},
        {"content": None, "refusal": None, "annotations": [], "audio": None, "tool_calls": None},
    ],
)
def test_answers_without_text(api, fields):
    (message,) = seen(api, {"role": "assistant", **fields})
    assert not message["content"]
    for name in ("refusal", "reasoning", "reasoning_content", "thinking"):
        assert message.get(name) == fields.get(name)


@pytest.mark.parametrize("role", ["user", "system", "developer"])
def test_other_messages_have_content(api, role):
    response = api.post(PATH, {"messages": [USER, {"role": role, "content": None}]})
    assert response.status_code == 400
    assert "messages.1: content is missing" in response.json()["error"]["message"]


@pytest.mark.parametrize("content", [[], None, ""])
def test_result_without_text(api, content):
    result = {"role": "tool", "tool_call_id": "c1", "content": content}
    assert not seen(api, {"role": "assistant", "tool_calls": [CALL]}, result)[1]["content"]
    del result["content"]
    assert not seen(api, {"role": "assistant", "tool_calls": [CALL]}, result)[1]["content"]


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"a": ', '{"a": '),
        ('{"a": 1,}', '{"a": 1,}'),
        ("", ""),
        (None, ""),
        ({"a": "é"}, '{"a": "é"}'),
        ([], "[]"),
        (5, "5"),
        (True, "true"),
    ],
)
def test_arguments_are_any_text(api, arguments, shown):
    call = {**CALL, "function": {"name": "add", "arguments": arguments}}
    (message,) = seen(api, {"role": "assistant", "content": None, "tool_calls": [call]})
    assert message["tool_calls"][0]["function"]["arguments"] == shown


def test_call_of_a_custom_tool_is_one_of_a_function(api):
    call = {"id": "c1", "type": "custom", "custom": {"name": "patch", "input": "*** x"}}
    (message,) = seen(api, {"role": "assistant", "content": None, "tool_calls": [call]})
    function = {"name": "patch", "arguments": '{"input": "*** x"}'}
    assert message["tool_calls"] == [{"id": "c1", "type": "function", "function": function}]


@pytest.mark.parametrize("change", [{"type": None}, {"type": None, "id": None, "custom": None}])
def test_fields_of_calls_may_be_null(api, change):
    """Clients that put a call together from the parts of a stream leave its type empty."""
    (message,) = seen(api, {"role": "assistant", "tool_calls": [{**CALL, **change}]})
    (call,) = message["tool_calls"]
    assert (call["type"], call["function"]) == ("function", CALL["function"])


def test_older_form_of_calls(api):
    function = {"name": "add", "arguments": "{}"}
    called = {"role": "assistant", "content": None, "function_call": function}
    message, result = seen(api, called, {"role": "function", "name": "add", "content": "2"})
    assert message["tool_calls"] == [{"type": "function", "function": function}]
    assert result == {"role": "tool", "name": "add", "content": "2"}


def test_parts_of_each_kind_of_text(api):
    content = [
        {"type": "thinking", "thinking": "2+2"},
        {"type": "thinking", "thinking": [{"type": "text", "text": "2+2"}]},
        {"type": "text", "text": "a"},
        {"type": "output_text", "text": "b"},
        {"type": "refusal", "refusal": "c"},
    ]
    (message,) = seen(api, {"role": "assistant", "content": content})
    assert message["content"] == [
        *content[:2],
        *({"type": "text", "text": text} for text in ("a", "b", "c")),
    ]


@pytest.mark.parametrize(
    "content", [["a", "b"], [{"text": "a"}, "b"], [{"type": None, "text": "a"}, "b"]]
)
def test_texts_and_objects_without_a_type_are_parts(api, content):
    (message,) = seen(api, {"role": "user", "content": content})
    assert message["content"] == [{"type": "text", "text": text} for text in "ab"]


@pytest.mark.parametrize("field", ["text", "reasoning"])
def test_part_of_reasoning_is_thinking(api, field):
    content = [{"type": "reasoning", field: "2+2"}, {"type": "text", "text": "4"}]
    (message,) = seen(api, {"role": "assistant", "content": content})
    assert message["content"][0] == {"type": "thinking", "thinking": "2+2"}


@pytest.mark.parametrize("content", [3, True, {"a": "é", "tool": 1}, [1, None], ["a"]])
@pytest.mark.parametrize("role", ["tool", "function"])
def test_results_that_are_values_of_json_are_text(api, role, content):
    result = {"role": role, "tool_call_id": "c1", "content": content}
    (_, message) = seen(api, {"role": "assistant", "tool_calls": [CALL]}, result)
    assert message["content"] == json.dumps(content, ensure_ascii=False)


@pytest.mark.parametrize("url", ["", "  "])
@pytest.mark.parametrize("wrap", [lambda url: {"url": url}, lambda url: url])
def test_image_without_address_is_refused(api, url, wrap):
    part = {"type": "image_url", "image_url": wrap(url)}
    response = api.post(PATH, {"messages": [{"role": "user", "content": [part]}]})
    assert response.status_code == 400
    error = response.json()["error"]
    assert "empty URL" in error["message"]
    assert error["param"] == "messages.0.content"


def test_image_stays_a_part(api):
    (message,) = seen(api, {"role": "user", "content": [IMAGE, {"type": "text", "text": "?"}]})
    assert message["content"] == [IMAGE, {"type": "text", "text": "?"}]


@pytest.mark.parametrize("name", ["prefix", "partial"])
def test_last_answer_with_a_prefix_is_continued(api, name):
    """The names of other servers for `continue_final_message`; an earlier answer, and `false`, continue nothing."""
    begun = {"role": "assistant", "content": "The answer", name: True}
    for messages, is_continued in [
        ([begun], True),
        ([begun, USER], False),
        ([begun | {name: False}], False),
    ]:
        seen(api, *messages)
        options = api.engine.io_processor.seen[1]
        assert options["continue_final_message"] is is_continued
        assert options["add_generation_prompt"] is not is_continued
