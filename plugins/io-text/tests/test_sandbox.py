"""Restrictions on a chat template, and on the request values that it prints."""

from __future__ import annotations

import datetime as dt
from types import SimpleNamespace

import pytest
from chat_templates import CHAT, TOOLS, text_of

from tenonry.errors import RequestError
from tenonry_io_text import sandbox


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
