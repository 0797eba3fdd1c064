"""Formats of calls that are JSON between marks, one class per family. Front end."""

from __future__ import annotations

from typing import ClassVar

from tenonry_output_parsers.call_grammar import CallFormat
from tenonry_output_parsers.json_calls import JsonCalls
from tenonry_output_parsers.text_input import Steps, check_marks


def _list_between(start: str, end: str) -> CallFormat:
    """A JSON list of calls between two marks."""
    return CallFormat(start, f"{start}[", f"]{end}", ", ", is_list=True)


class ToolCalls(JsonCalls):
    """`<tool_calls>[…]</tool_calls>`: Jamba, Apriel, Hunyuan; MiniMax M1 with an object per line."""

    starts = check_marks("<tool_calls>")
    end = "</tool_calls>"
    markers: ClassVar[tuple[str, ...]] = ("<tool_calls>", "</tool_calls>")
    form = _list_between("<tool_calls>", "</tool_calls>")


class Nemotron(JsonCalls):
    """`<TOOLCALL>[…]</TOOLCALL>`: Nemotron Nano and Super."""

    starts = check_marks("<TOOLCALL>")
    end = "</TOOLCALL>"
    markers: ClassVar[tuple[str, ...]] = ("<TOOLCALL>", "</TOOLCALL>")
    form = _list_between("<TOOLCALL>", "</TOOLCALL>")


class Granite(JsonCalls):
    """`<|tool_call|>[…]`: Granite 3, whose models leave the bars out now and then."""

    starts = check_marks("<|tool_call|>", "<tool_call>")
    markers: ClassVar[tuple[str, ...]] = ("<|tool_call|>", "<tool_call>")
    form = _list_between("<|tool_call|>", "")

    @classmethod
    def recognises(cls, template: str) -> bool:
        return "<|tool_call|>" in template


class Phi(JsonCalls):
    """`<|tool_call|>[…]<|/tool_call|>`: Phi-4-mini."""

    starts = check_marks("<|tool_call|>")
    end = "<|/tool_call|>"
    markers: ClassVar[tuple[str, ...]] = ("<|tool_call|>", "<|/tool_call|>")
    form = _list_between("<|tool_call|>", "<|/tool_call|>")

    @classmethod
    def recognises(cls, template: str) -> bool:
        return "<|/tool_call|>" in template or "<|/tool|>" in template


class Functools(JsonCalls):
    """`functools[…]`: FireFunction, and Phi-4-mini with a prompt for it."""

    starts = check_marks("functools")
    form = _list_between("functools", "")
    is_bare = True

    @classmethod
    def recognises(cls, template: str) -> bool:
        return "functools[" in template


class GraniteCode(JsonCalls):
    """`<function_call> {…}`: Granite 20B FC."""

    starts = check_marks("<function_call>")
    markers: ClassVar[tuple[str, ...]] = ("<function_call>",)
    form = CallFormat("<function_call>", "<function_call> ", "", "\n")


class InternLm(JsonCalls):
    """`<|action_start|><|plugin|>{…}<|action_end|>`: InternLM 2 and later."""

    starts = check_marks("<|action_start|>")
    end = "<|action_end|>"
    plugin: ClassVar[str] = "<|plugin|>"
    markers: ClassVar[tuple[str, ...]] = ("<|action_start|>", "<|plugin|>", "<|action_end|>")
    form = CallFormat(
        "<|action_start|>", "<|action_start|><|plugin|>\n", "<|action_end|>", "\n", "parameters"
    )

    def calls(self) -> Steps[None]:
        yield from self.source.spaces()
        yield from self.source.accept(self.plugin)
        yield from super().calls()


class GigaChat(JsonCalls):
    """`function call<|role_sep|>{…}`, and `<|function_call|>{…}` from 3.1 on."""

    starts = check_marks("<|function_call|>", "function call<|role_sep|>")
    markers: ClassVar[tuple[str, ...]] = ("<|function_call|>", "<|role_sep|>")
    form = CallFormat("<|function_call|>", "<|function_call|>", "", "\n")

    @classmethod
    def recognises(cls, template: str) -> bool:
        return "<|role_sep|>" in template and "function call" in template
