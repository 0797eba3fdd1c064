"""The Messages and Responses APIs over a real server, by the official clients; the worker answers by a script."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator

import anthropic
import openai
import pytest
from scripted import start_scripted
from server_process import Server

pytestmark = pytest.mark.timeout(120)
CALL = '{"name": "add", "arguments": {"a": 1}}'
ANSWER = f"<think>\nHm.\n</think>\n\nI add.\n<tool_call>\n{CALL}\n</tool_call>"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
KEY = "secret"


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("protocols")
    server = start_scripted(folder, ANSWER, "--api-key", KEY)
    try:
        yield server.ready()
    finally:
        server.close()


@pytest.fixture
def claude(server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture
def client(server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key=KEY, max_retries=0) as client:
        yield client


class TestMessages:
    FIELDS = {  # noqa: RUF012
        "model": "tiny",
        "max_tokens": 400,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": "Add."}],
        "tools": [{"name": "add", "description": "Adds.", "input_schema": SCHEMA}],
    }

    def check(self, message) -> None:
        thinking, text, call = message.content
        assert (thinking.type, thinking.thinking) == ("thinking", "Hm.")
        assert (text.type, text.text) == ("text", "I add.")
        assert (call.type, call.name, call.input) == ("tool_use", "add", {"a": 1})
        assert message.stop_reason == "tool_use"

    def test_whole(self, claude):
        message = claude.messages.create(**self.FIELDS)
        self.check(message)
        assert message.usage.output_tokens > 20

    def test_stream_in_the_documented_order(self, claude):
        whole = claude.messages.create(**self.FIELDS)
        with claude.messages.stream(**self.FIELDS) as stream:
            kinds = [
                event.type
                for event in stream
                if not event.type.startswith(("text", "thinking", "input_json"))
            ]
            self.check(stream.get_final_message())
            assert stream.get_final_message().usage.output_tokens == whole.usage.output_tokens
        kinds = [kind for kind in kinds if kind != "signature"]
        assert kinds[0] == "message_start"
        assert kinds[-2:] == ["message_delta", "message_stop"]
        blocks = [kind for kind in kinds[1:-2] if kind != "content_block_delta"]
        assert blocks == ["content_block_start", "content_block_stop"] * 3

    def test_results_of_tools_go_back(self, claude):
        first = claude.messages.create(**self.FIELDS)
        call = first.content[-1]
        result = {
            "type": "tool_result",
            "tool_use_id": call.id,
            "content": [{"type": "text", "text": "2"}],
        }
        messages = [
            *self.FIELDS["messages"],
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": [result]},
        ]
        self.check(claude.messages.create(**{**self.FIELDS, "messages": messages}))

    def test_tokens_are_counted_without_computing_any(self, claude):
        fields = {name: value for name, value in self.FIELDS.items() if name != "max_tokens"}
        counted = claude.messages.count_tokens(**fields).input_tokens
        usage = claude.messages.create(**self.FIELDS).usage
        assert counted == usage.input_tokens + usage.cache_read_input_tokens

    def test_beta_routes_and_stop_sequences(self, claude):
        message = claude.beta.messages.create(**self.FIELDS, stop_sequences=["\n<tool_call>"])
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "\n<tool_call>")
        assert message.content[-1].text == "I add."

    def test_helpers_that_keep_threads_send_the_whole_conversation(self, claude):
        """Nothing is stored here: a client learns so when it continues a thread, and starts over with all of it."""
        fields = {name: self.FIELDS[name] for name in ("model", "max_tokens")}
        thread = claude.beta.messages.thread(**fields)
        for count in (1, 2, 3):
            thread.send(*self.FIELDS["messages"])
            assert len(thread.messages) == 2 * count
        seen = []

        @anthropic.beta_tool
        def add(a: int) -> str:
            """Adds."""
            seen.append(a)
            return "2"

        question = {"messages": self.FIELDS["messages"], "tools": [add], "max_iterations": 4}
        for message in claude.beta.messages.tool_runner(**fields, **question):
            self.check(message)
        assert seen == [1] * 4

    def test_errors_have_the_shape_that_the_client_knows(self, claude, server):
        source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
        for image, message in (
            ({}, r"source.type: None is not read here"),
            (source, r"runs with --max-images"),
        ):
            content = [{"type": "image", "source": image}]
            with pytest.raises(anthropic.BadRequestError, match=message):
                claude.messages.create(
                    model="tiny", max_tokens=1, messages=[{"role": "user", "content": content}]
                )
        with pytest.raises(anthropic.NotFoundError, match="not served here"):
            claude.messages.create(**{**self.FIELDS, "model": "other"})
        with (
            anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0) as stranger,
            pytest.raises(anthropic.AuthenticationError),
        ):
            stranger.messages.create(**self.FIELDS)

    def test_head_of_the_root(self, server):
        request = urllib.request.Request(
            server.url + "/", method="HEAD", headers={"x-api-key": KEY}
        )
        with urllib.request.urlopen(request, timeout=10) as response:
            assert response.status == 200


class TestResponses:
    FIELDS = {  # noqa: RUF012
        "model": "tiny",
        "instructions": "Be brief.",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Add."}]}],
        "tools": [{"type": "function", "name": "add", "parameters": SCHEMA, "strict": False}],
        "max_output_tokens": 400,
    }

    def check(self, response) -> None:
        reasoning, message, call = response.output
        assert reasoning.content[0].text == "Hm."
        assert message.content[0].text == response.output_text == "I add."
        assert (call.type, call.name, json.loads(call.arguments)) == (
            "function_call",
            "add",
            {"a": 1},
        )
        assert response.status == "completed"
        assert [item.status for item in response.output] == ["completed"] * 3
        assert (
            response.usage.output_tokens > response.usage.output_tokens_details.reasoning_tokens > 0
        )

    def test_whole(self, client):
        self.check(client.responses.create(**self.FIELDS))

    def test_stream_in_the_documented_order(self, client):
        events = list(client.responses.create(**self.FIELDS, stream=True))
        assert [event.sequence_number for event in events] == list(range(len(events)))
        kinds = [
            event.type.removeprefix("response.")
            for event in events
            if not event.type.endswith(".delta")
        ]
        assert kinds == [
            "created", "in_progress",
            "output_item.added", "content_part.added", "reasoning_text.done", "content_part.done", "output_item.done",
            "output_item.added", "content_part.added", "output_text.done", "content_part.done", "output_item.done",
            "output_item.added", "function_call_arguments.done", "output_item.done",
            "completed",
        ]  # fmt: skip
        self.check(events[-1].response)
        with client.responses.stream(**{**self.FIELDS, "tools": []}) as stream:
            for _ in stream:
                pass
            assert stream.get_final_response().output_text.startswith("I add.")

    def test_a_conversation_comes_whole(self, client):
        first = client.responses.create(**self.FIELDS)
        call = first.output[-1]
        items = [
            *self.FIELDS["input"],
            *[item.model_dump(exclude_none=True) for item in first.output],
            {"type": "function_call_output", "call_id": call.call_id, "output": "2"},
        ]
        self.check(client.responses.create(**{**self.FIELDS, "input": items}))

    def test_answer_that_is_cut_off_is_incomplete(self, client):
        response = client.responses.create(**{**self.FIELDS, "max_output_tokens": 16})
        assert response.status == "incomplete"
        assert response.incomplete_details.reason == "max_output_tokens"
        assert response.output[-1].status == "incomplete"

    @pytest.mark.parametrize(
        ("fields", "ignored"),
        [
            ({"tools": [{"type": "web_search"}]}, "tools[0] (web_search)"),
            (
                {"input": [{"role": "user", "content": "Hi"}, {"type": "computer_call"}]},
                "input[] (computer_call)",
            ),
        ],
    )
    def test_what_the_server_cannot_do_is_left_out_and_named(self, client, fields, ignored):
        answer = client.responses.with_raw_response.create(**{**self.FIELDS, **fields})
        assert ignored in answer.headers["x-tenonry-ignored"]
        assert answer.parse().output

    def test_what_is_not_offered_is_refused_by_name(self, client):
        for fields, param, code in (
            (
                {"previous_response_id": "resp_1"},
                "previous_response_id",
                "previous_response_not_found",
            ),
            ({"background": True}, "background", "unsupported"),
        ):
            with pytest.raises(openai.BadRequestError) as refused:
                client.responses.create(**{**self.FIELDS, **fields})
            assert (refused.value.param, refused.value.code) == (param, code)
