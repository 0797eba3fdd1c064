"""Chats rendered as transformers renders them, and everything a request must not be able to do."""

from __future__ import annotations

import copy
import datetime as dt
import json
from types import SimpleNamespace

import pytest

from tenonry.errors import ConfigError, ModelError, RequestError
from tenonry.sampling_params import SamplingParams
from tenonry_io_text import sandbox
from tenonry_io_text.chat import find_templates
from tenonry_io_text.content import ContentForm, content_form, plain
from tenonry_io_text.sandbox import ChatTemplate

CHATML = """{%- for message in messages %}
    {{- '<|' + message['role'] + '|>\\n' + message['content'] | default('', true) | trim + '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\\n' }}
{%- endif %}"""
TOOLS = """{{ bos_token }}{% if tools %}Tools: {{ tools | tojson(indent=2) }}
{% endif %}{% if documents %}{% for d in documents %}[{{ d.title }}] {{ d.text }}
{% endfor %}{% endif %}
{% for message in messages %}
{% if message.role == 'system' and not loop.first %}{{ raise_exception('system must be first') }}{% endif %}
{% if message.tool_calls is defined %}
{% for call in message.tool_calls %}call {{ call.function.name }}({{ call.function.arguments | tojson }})
{% endfor %}
{% else %}
{{ message.role }}: {{ message.content }}{{ eos_token }}
{% endif %}
{% endfor %}"""
STATE = """{% set ns = namespace(last='', count=0) %}
{% for m in messages %}{% if m.role == 'skip' %}{% continue %}{% endif %}{% if m.role == 'stop' %}{% break %}{% endif %}
{% set ns.last = m.content %}{% set ns.count = ns.count + 1 %}
{% generation %}{{ m.content }}{% endgeneration %};{% endfor %}
{{ ns.last }} {{ ns.count }} {{ dict(a=1, b='é') | tojson }} {{ strftime_now('%Y') }}
{{ thinking | default('unset') }}"""
PARTS = """{% for m in messages %}{{ m.role }}:{% for part in m.content %}
{% if part.type == 'text' %}<{{ part.text }}>{% endif %}
{% endfor %}
{% endfor %}"""
EITHER = """{% for m in messages %}{% set content = m['content'] %}{{ m.role }}:
{% if content is string %}{{ content }}{% else %}{% for part in content %}<{{ part['text'] }}>{% endfor %}{% endif %}
{% endfor %}"""
THINKING = """{% for m in messages %}{{ m.role }}
{%- if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}: {{ m.content }}
{% endfor %}{% if enable_thinking is defined and not enable_thinking %}[off]{% endif %}"""

CHAT = [
    {"role": "system", "content": "Be brief. "},
    {"role": "user", "content": "Hello <b>& you</b> 你好"},
    {"role": "assistant", "content": "Hi!", "name": None},
    {"role": "user", "content": " What is\n2+2? "},
]
CALL = {
    "type": "function",
    "id": "1",
    "function": {"name": "add", "arguments": {"a": 1, "b": [2, "é"]}},
}
TOOL_CHAT = [
    {"role": "user", "content": "add"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "3", "tool_call_id": "1"},
]
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": 'Adds "numbers" <b>',
        "parameters": {"type": "object"},
    },
}


@pytest.fixture
def chat(tokenizer_folders, make_processor):
    """A processor with one operator's template."""

    def make(template, **options):
        return make_processor(tokenizer_folders["llama"], chat_template=template, **options)

    return make


@pytest.fixture(scope="session")
def oracle(tokenizer_folders):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(tokenizer_folders["llama"]), local_files_only=True)


def text_of(processor, messages, **kwargs):
    return processor.render_chat(messages, **kwargs)["prompt"]


@pytest.mark.parametrize("template", [CHATML, TOOLS, STATE, EITHER, THINKING])
@pytest.mark.parametrize(
    "messages", [CHAT, CHAT[1:2], TOOL_CHAT, [*CHAT, {"role": "skip", "content": ""}]]
)
@pytest.mark.parametrize("prompt", [True, False])
def test_same_text_as_transformers(chat, oracle, template, messages, prompt):
    """Fields that are null are left out for both: older releases of transformers print them as "None"."""
    messages = [
        {key: value for key, value in message.items() if value is not None} for message in messages
    ]
    for tools, documents in ((None, None), ([TOOL], [{"title": "T", "text": "x"}])):
        expected = oracle.apply_chat_template(
            copy.deepcopy(messages), chat_template=template, tokenize=False, add_generation_prompt=prompt, tools=tools,
            documents=documents,
        )  # fmt: skip
        found = text_of(
            chat(template), messages, add_generation_prompt=prompt, tools=tools, documents=documents
        )
        assert found == expected


@pytest.mark.parametrize("template", [CHATML, TOOLS, EITHER])
@pytest.mark.parametrize("last", ["The answer", "The answer is ", "two\nlines\n"])
def test_continued_message_as_transformers_does_it(chat, oracle, template, last):
    messages = [*CHAT, {"role": "assistant", "content": last}]
    expected = oracle.apply_chat_template(
        copy.deepcopy(messages), chat_template=template, tokenize=False, continue_final_message=True
    )
    assert text_of(chat(template), messages, continue_final_message=True) == expected


def test_continued_message_in_parts(chat):
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [{"type": "text", "text": "so far"}]},
    ]
    assert (
        text_of(chat(PARTS), messages, continue_final_message=True) == "user:<x>assistant:<so far"
    )


def test_null_fields_are_left_out(chat):
    assert "None" not in text_of(chat(THINKING), TOOL_CHAT)


def test_messages_are_not_changed(chat):
    messages = copy.deepcopy(
        [*CHAT, {"role": "assistant", "content": [{"type": "text", "text": "x"}]}]
    )
    before = copy.deepcopy(messages)
    text_of(chat(EITHER), messages, continue_final_message=True)
    assert messages == before


def test_generation_prompt_is_the_default(chat):
    assert text_of(chat(CHATML), CHAT).endswith("<|assistant|>\n")
    assert text_of(chat(CHATML), CHAT, add_generation_prompt=False).endswith("<|end|>\n")


def test_rendered_chat_gets_no_second_bos(chat):
    processor = chat("{{ bos_token }}{{ messages[0].content }}")
    prompt = processor.render_chat([{"role": "user", "content": "the cat"}])
    ids = processor.process_prompt(prompt, SamplingParams()).token_ids.tolist()
    assert ids.count(1) == 1
    assert ids[0] == 1


class TestContent:
    @pytest.mark.parametrize(
        ("template", "form"),
        [
            (CHATML, ContentForm.TEXT),
            (TOOLS, ContentForm.TEXT),
            (PARTS, ContentForm.PARTS),
            (EITHER, ContentForm.EITHER),
            ("{% for p in messages[0]['content'] | list %}{{ p }}{% endfor %}", ContentForm.PARTS),
            ("{% set c = messages[0].content %}{% for p in c %}{{ p }}{% endfor %}", ContentForm.PARTS),
        ],
    )  # fmt: skip
    def test_form_is_read_off_the_template(self, template, form):
        assert content_form(ChatTemplate(template).tree) is form

    def test_parts_become_text_where_text_is_wanted(self, chat):
        content = [
            {"type": "text", "text": "a"},
            "b",
            {"type": "input_text", "text": "c"},
            {"type": "refusal", "refusal": "d"},
        ]
        assert (
            text_of(chat("{{ messages[0].content }}"), [{"role": "user", "content": content}])
            == "a\nb\nc\nd"
        )

    def test_text_becomes_a_part_where_parts_are_wanted(self, chat):
        assert text_of(chat(PARTS), [{"role": "user", "content": "a"}]) == "user:<a>"

    def test_arguments_of_tool_calls_become_objects(self, chat):
        """The API carries them as JSON text; templates print them as objects."""
        call = {
            **CALL,
            "function": {"name": "add", "arguments": json.dumps(CALL["function"]["arguments"])},
        }
        messages = [TOOL_CHAT[0], {**TOOL_CHAT[1], "tool_calls": [call]}]
        assert text_of(chat(TOOLS), messages) == text_of(chat(TOOLS), TOOL_CHAT[:2])
        empty = {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "add", "arguments": ""}}],
        }
        assert "add({})" in text_of(chat(TOOLS), [empty])

    @pytest.mark.parametrize("name", ["reasoning", "thinking", "reasoning_content"])
    def test_reasoning_under_each_of_its_names(self, chat, name):
        assert (
            text_of(chat(THINKING), [{"role": "assistant", "content": "4", name: "2+2"}])
            == "assistant(2+2): 4\n"
        )

    def test_pydantic_messages(self, chat):
        from pydantic import BaseModel

        class Message(BaseModel):
            role: str
            content: str

        assert text_of(chat(THINKING), [Message(role="user", content="x")]) == "user: x\n"

    @pytest.mark.parametrize(
        ("messages", "words", "param"),
        [
            ([], "messages is empty", "messages"),
            ("hi", "must be a list, not a str", "messages"),
            (None, "must be a list", "messages"),
            ([3], r"messages\[0\] must be an object", "messages[0]"),
            ([{"content": "x"}], "with 'role'", "messages[0]"),
            ([{"role": 3, "content": "x"}], "with 'role'", "messages[0]"),
            ([CHAT[0], {"role": "user", "content": 3}], "string or a list of parts, not a int", "messages[1].content"),
            (
                [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}],
                "type 'image_url'; only text is supported",
                "messages[0].content[0]",
            ),
            ([{"role": "user", "content": [{"type": "text"}]}], "must be a string", "messages[0].content[0]"),
            ([{"role": "user", "content": [3]}], "is a int", "messages[0].content[0]"),
            ([{"role": "user", "content": [{"type": ["text"]}]}], "only text", "messages[0].content[0]"),
            ([{"role": "assistant", "tool_calls": 3}], "tool_calls must be a list", "messages[0].tool_calls"),
            ([{"role": "assistant", "tool_calls": [{}]}], "'function'", "messages[0].tool_calls"),
            (
                [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
                "not valid JSON",
                "messages[0].tool_calls",
            ),
            ([{"role": "user", "content": object()}], "hold a object", "messages"),
        ],
    )  # fmt: skip
    def test_bad_messages_are_named(self, chat, messages, words, param):
        with pytest.raises(RequestError, match=words) as caught:
            text_of(chat(CHATML), messages)
        assert caught.value.param == param

    def test_deep_nesting_is_refused(self):
        value = []
        for _ in range(100):
            value = [value]
        with pytest.raises(RequestError, match="64 levels"):
            plain(value)

    def test_too_many_messages(self, chat):
        with pytest.raises(RequestError, match="5000 entries; at most 1024"):
            text_of(chat(CHATML), CHAT[:1] * 5000)


class TestArguments:
    def test_kwargs_that_the_template_reads(self, chat):
        messages = CHAT[:1]
        assert "[off]" in text_of(
            chat(THINKING), messages, chat_template_kwargs={"enable_thinking": False}
        )
        assert "[off]" not in text_of(
            chat(THINKING), messages, chat_template_kwargs={"enable_thinking": True}
        )

    def test_kwargs_that_it_does_not_read_do_not_matter(self, chat):
        assert text_of(
            chat(CHATML), CHAT, chat_template_kwargs={"enable_thinking": False}
        ) == text_of(chat(CHATML), CHAT)

    @pytest.mark.parametrize(
        "name",
        [
            "messages",
            "tools",
            "tokenize",
            "chat_template",
            "add_generation_prompt",
            "bos_token",
            "raise_exception",
            "range",
        ],
    )
    def test_kwargs_cannot_replace_what_is_not_theirs(self, chat, name):
        """Class J: CVE-2025-62426 was `tokenize` in chat_template_kwargs."""
        with pytest.raises(RequestError, match=f"must not set {name}") as caught:
            text_of(chat(TOOLS), CHAT, chat_template_kwargs={name: "x"})
        assert caught.value.param == "chat_template_kwargs"

    @pytest.mark.parametrize("given", [[], "x", {str(index): 1 for index in range(65)}])
    def test_kwargs_are_an_object_of_bounded_size(self, chat, given):
        with pytest.raises(RequestError, match="at most 64 entries"):
            text_of(chat(CHATML), CHAT, chat_template_kwargs=given)

    def test_a_template_cannot_come_from_a_request(self, chat):
        with pytest.raises(RequestError, match="unknown chat settings: chat_template;") as caught:
            chat(CHATML).render_chat(CHAT, chat_template="{{ 1 }}")
        assert caught.value.param == "chat_template"

    def test_continue_and_prompt_exclude_each_other(self, chat):
        with pytest.raises(RequestError, match="exclude each other"):
            text_of(chat(CHATML), CHAT, continue_final_message=True, add_generation_prompt=True)

    @pytest.mark.parametrize("last", [{"role": "assistant"}, {"role": "assistant", "content": []}])
    def test_nothing_to_continue(self, chat, last):
        with pytest.raises(RequestError, match="no content to continue"):
            text_of(chat(EITHER), [*CHAT, last], continue_final_message=True)

    def test_template_that_drops_the_last_message(self, chat):
        with pytest.raises(RequestError, match="does not print the last message"):
            text_of(chat("{{ messages[0].content }}"), CHAT, continue_final_message=True)

    @pytest.mark.parametrize("param", ["tools", "documents"])
    @pytest.mark.parametrize("value", ["x", [3], {"a": 1}])
    def test_tools_and_documents_are_lists_of_objects(self, chat, param, value):
        with pytest.raises(RequestError, match=f"{param} must be a list of objects") as caught:
            text_of(chat(TOOLS), CHAT, **{param: value})
        assert caught.value.param == param


class TestSandbox:
    """Class J of the reliability rules."""

    def test_refusal_of_the_template_is_quoted(self, chat):
        with pytest.raises(
            RequestError, match="refuses these messages: system must be first"
        ) as caught:
            text_of(chat(TOOLS), [CHAT[1], CHAT[0]])
        assert caught.value.param == "messages"

    @pytest.mark.parametrize(
        "template",
        [
            "{{ messages.append(1) }}",
            "{{ messages[0].update({'a': 1}) }}",
            "{{ messages.__class__ }}",
            "{{ ''.__class__.__mro__ }}",
            "{{ messages[0].content.format.__globals__ }}",
            "{{ dict.__class__ }}",
            "{{ dict.fromkeys }}",
            "{{ raise_exception.__globals__ }}",
            "{{ range(10000000) | list }}",
            "{% set ns = namespace(__class__=1) %}{{ ns }}",
            "{{ messages[0].missing.attribute }}",
            "{{ messages[0].content + 3 }}",
            "{{ 1 / 0 }}",
            "{{ '%d' % 'x' }}",
            "{% include 'x' %}",
        ],
    )
    def test_what_a_template_cannot_do(self, chat, template):
        messages = [{"role": "user", "content": "x"}]
        try:
            text = text_of(chat(template), messages)
        except RequestError as error:
            text = str(error)
        assert text == "" or "template failed" in text
        assert " at 0x" not in text
        assert messages == [{"role": "user", "content": "x"}]

    def test_values_are_text_and_never_templates(self, chat):
        assert (
            text_of(chat("{{ messages[0].content }}"), [{"role": "user", "content": "{{ 7*7 }}"}])
            == "{{ 7*7 }}"
        )

    def test_output_is_bounded(self, chat):
        processor = chat(
            "{% for i in range(1000) %}{{ messages[0].content }}{% endfor %}",
            options={"max_prompt_chars": 5000},
        )
        with pytest.raises(RequestError, match="more than 5000 characters"):
            text_of(processor, [{"role": "user", "content": "x" * 100}])

    def test_time_is_bounded(self, chat, monkeypatch):
        ticks = iter(range(0, 1000, 3))
        monkeypatch.setattr(sandbox, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
        with pytest.raises(RequestError, match="more than 10 s"):
            text_of(chat("{% for i in range(1000) %}{{ i }}{% endfor %}"), CHAT)

    def test_date(self, chat):
        assert text_of(chat("{{ strftime_now('%Y') }}"), CHAT) == str(
            dt.datetime.now().astimezone().year
        )


class TestWhereTemplatesComeFrom:
    def test_none(self, tokenizer_folders, make_processor):
        with pytest.raises(
            RequestError, match=r"no chat template; use a plain prompt .*--chat-template"
        ) as caught:
            make_processor(tokenizer_folders["llama"]).render_chat(CHAT)
        assert caught.value.param == "messages"

    def test_operators_file_and_text(self, chat, tmp_path):
        (tmp_path / "t.jinja").write_text(CHATML)
        assert text_of(chat(str(tmp_path / "t.jinja")), CHAT) == text_of(chat(CHATML), CHAT)

    def test_operators_mistakes_stop_the_start(self, chat, tmp_path):
        with pytest.raises(ConfigError, match=r"nowhere\.jinja does not exist"):
            chat(str(tmp_path / "nowhere.jinja"))
        with pytest.raises(ConfigError, match=r"not valid Jinja: .* \(line 2\)"):
            chat("{{ 1 }}\n{% for %}")

    def test_the_models_own_are_searched_in_order(self, tmp_path):
        config = tmp_path / "tokenizer_config.json"
        assert find_templates([tmp_path]) == {}
        (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "legacy"}))
        assert find_templates([tmp_path]) == {"default": "legacy"}
        config.write_text(json.dumps({"chat_template": "entry"}))
        assert find_templates([tmp_path]) == {"default": "entry"}
        config.write_text(
            json.dumps(
                {
                    "chat_template": [
                        {"name": "default", "template": "a"},
                        {"name": "rag", "template": "b"},
                    ]
                }
            )
        )
        assert find_templates([tmp_path]) == {"default": "a", "rag": "b"}
        (tmp_path / "chat_template.jinja").write_text("file")
        (tmp_path / "additional_chat_templates").mkdir()
        (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
        assert find_templates([tmp_path / "other", tmp_path]) == {
            "default": "file",
            "tool_use": "tools",
        }

    def test_malformed_entry(self, tmp_path):
        (tmp_path / "tokenizer_config.json").write_text(
            json.dumps({"chat_template": [{"template": "a"}]})
        )
        with pytest.raises(ModelError, match="name and template"):
            find_templates([tmp_path])

    @pytest.fixture
    def named(self, tokenizer_folders, make_processor, tmp_path):
        def make(**templates):
            entries = [{"name": name, "template": text} for name, text in templates.items()]
            folder = tmp_path / "named"
            folder.mkdir()
            for path in tokenizer_folders["llama"].iterdir():
                (folder / path.name).write_bytes(path.read_bytes())
            config = json.loads((folder / "tokenizer_config.json").read_text())
            (folder / "tokenizer_config.json").write_text(
                json.dumps(config | {"chat_template": entries})
            )
            return make_processor(folder)

        return make

    def test_named_templates(self, named):
        processor = named(default="plain {{ eos_token }}", tool_use="with tools")
        assert text_of(processor, CHAT) == "plain </s>"
        assert text_of(processor, CHAT, tools=[TOOL]) == "with tools"
        assert text_of(processor, CHAT, tools=[]) == "plain </s>"

    def test_no_default_among_the_named(self, named):
        with pytest.raises(RequestError, match="templates named rag, but no default"):
            named(rag="x").render_chat(CHAT)

    def test_broken_template_of_the_model(self, named):
        with pytest.raises(RequestError, match="not valid Jinja"):
            named(default="{% for %}").render_chat(CHAT)
