"""The channels of gpt-oss: `<|channel|>analysis<|message|>…<|end|>`. Front end.

The format is described in OpenAI's harmony guide. The package openai-harmony reads it from token ids of its own
vocabulary, which it downloads; this parser reads text, as the others do, and needs no network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from tenonry.sampling_params import StructuredOutput
from tenonry_output_parsers.base import Tool
from tenonry_output_parsers.call_grammar import (
    LAZY,
    any_arguments,
    arguments_of,
    lark,
    literal,
    one_of,
)
from tenonry_output_parsers.scanning import ScanningParser
from tenonry_output_parsers.text_input import Malformed, Steps, check_marks

START = "<|start|>"
CHANNEL = "<|channel|>"
MESSAGE = "<|message|>"
CONSTRAIN = "<|constrain|>"
ENDS = ("<|end|>", "<|return|>", "<|call|>")
HEAD_MARKS = check_marks(START, CHANNEL)
MESSAGE_MARKS = check_marks(MESSAGE)
BODY_MARKS = check_marks(*ENDS, START, CHANNEL)
FUNCTIONS = "functions."
MAX_HEADER = 1 << 10
_NEXT = f"{literal(START)} {literal('assistant')}"
# Text of a message, without markup of others.
_BODY = r"BODY: /(.|\n)*/ & ~/(.|\n)*<\|(start|channel|message|return|call)\|>(.|\n)*/"


class Harmony(ScanningParser):
    """Reasoning in the channel `analysis`, calls in messages to `functions.NAME`, all other messages are text."""

    reads_calls = True
    markers: ClassVar[tuple[str, ...]] = (START, CHANNEL, MESSAGE, CONSTRAIN, *ENDS)

    @classmethod
    def recognises(cls, template: str) -> bool:
        return CHANNEL in template and MESSAGE in template

    @classmethod
    def grammar(cls, tools: Sequence[Tool], *, parallel: bool) -> StructuredOutput:
        """Reasoning, if the model likes, and one call: a call ends an answer of these models."""
        return lark("start: think? call", *_messages(tools))

    @classmethod
    def strict_grammar(cls, tools: Sequence[Tool]) -> StructuredOutput:
        final = f"{literal(CHANNEL)} {literal('final')} {literal(MESSAGE)} BODY"
        say = f"{literal(CHANNEL)} {literal('commentary')} {literal(MESSAGE)} body {_NEXT}"
        return lark(
            "start: (think | say)* (call | final)",
            f"say: {say}",
            f"final: {final}",
            *_messages(any_arguments(tools)),
        )

    def read(self) -> Steps[None]:
        _, start, lead = self.context.prompt.rpartition(START)
        head, message, body = lead.rpartition(MESSAGE) if start else ("", "", "")
        mark = ""
        if start and not message:
            mark = yield from self._rest_of_header(lead)
        elif message and not any(end in body for end in ENDS):
            mark = yield from self._message(head)
        while True:
            if mark not in HEAD_MARKS:
                mark = yield from self.source.until(HEAD_MARKS, self.text)
            if not mark:
                return
            self.source.limit(MAX_HEADER)
            try:
                head, _ = yield from self.source.collect(MESSAGE_MARKS)
            except Malformed:
                self.text(mark + self.source.unlimit())
                mark = ""
                continue
            self.source.unlimit()
            mark = yield from self._message(mark + head)

    def _rest_of_header(self, lead: str) -> Steps[str]:
        """Read the rest of a header that the prompt has begun, and its message; returns the mark behind it."""
        source = self.source
        source.limit(MAX_HEADER)
        try:
            yield from source.spaces()
            is_header = CHANNEL in lead or bool((yield from source.accept("to=")))
            if is_header:
                yield from source.collect(MESSAGE_MARKS)
        except Malformed:
            is_header = False
        read = source.unlimit()
        if not is_header:
            self.text(read)
            return ""
        return (yield from self._message(f"{lead} {read.removesuffix(MESSAGE)}"))

    def _message(self, head: str) -> Steps[str]:
        """Read a message with this header; returns the mark that ends it."""
        words = head.replace(CHANNEL, f" {CHANNEL}").replace(CONSTRAIN, " ").split()
        channel = next((word for word in words if word.startswith(CHANNEL)), "")
        recipient = next((word for word in words if word.startswith("to=")), "")
        if recipient and self.context.tools:
            return (yield from self._call(recipient[3:].removeprefix(FUNCTIONS)))
        is_reasoning = channel == f"{CHANNEL}analysis" or bool(recipient)
        emit = self.reasoning if is_reasoning else self.text
        self.cut()
        mark = yield from self.source.until(BODY_MARKS, emit)
        if mark:
            self.cut()
        return mark

    def _call(self, name: str) -> Steps[str]:
        has_arguments = False

        def emit(piece: str) -> None:
            nonlocal has_arguments
            has_arguments = True
            self.arguments(piece)

        show: Callable[[str], None] = emit
        try:
            self.start_call(name)
        except Malformed:
            show = self.text
        mark = yield from self.source.until(BODY_MARKS, show)
        if show is emit:
            if not has_arguments:
                self.arguments("{}")
            self.end_call()
        return mark


def _messages(tools: Sequence[Tool]) -> list[str]:
    """Reasoning that another message follows, and a call, which the end of the answer does."""
    think = f"{literal(CHANNEL)} {literal('analysis')} {literal(MESSAGE)} body {_NEXT}"
    lead = literal(f"commentary to={FUNCTIONS}")
    return [
        f"think: {think}",
        f"body{LAZY}: BODY {literal(ENDS[0])}",
        _BODY,
        f"call: {literal(CHANNEL)} {lead} one",
        *one_of(tools, "one", _call),
        *arguments_of(tools),
    ]


def _call(name: str, arguments: str) -> str:
    head = f"{literal(name + ' ')} {literal(CONSTRAIN)} {literal('json')}"
    return f"{head} {literal(MESSAGE)} {arguments}"
