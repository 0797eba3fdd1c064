"""Sections of Cohere's Command R7B and Command A: reasoning, actions and responses. Front end."""

from __future__ import annotations

from typing import ClassVar

from tenonry_output_parsers.base import ParserContext
from tenonry_output_parsers.call_grammar import CallFormat
from tenonry_output_parsers.json_calls import JsonCalls
from tenonry_output_parsers.text_input import Malformed, Steps, check_marks

THINKING = "<|START_THINKING|>"
THINKING_END = "<|END_THINKING|>"
ACTION = "<|START_ACTION|>"
ACTION_END = "<|END_ACTION|>"
TEXTS = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")
MARKS = check_marks(THINKING, THINKING_END, ACTION, *TEXTS)


class Cohere(JsonCalls):
    """Reasoning, then `<|START_ACTION|>[{"tool_name": …, "parameters": {…}}]<|END_ACTION|>` or a response."""

    starts = check_marks(ACTION)
    end = ACTION_END
    markers: ClassVar[tuple[str, ...]] = (THINKING, THINKING_END, ACTION, ACTION_END, *TEXTS)
    ends_reasoning: ClassVar[str] = THINKING_END
    form = CallFormat(
        ACTION, f"{ACTION}[\n", f"\n]{ACTION_END}", ",\n", "parameters", "tool_name", is_list=True
    )

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._is_thinking = context.prompt.rstrip().endswith(THINKING)

    @property
    def begins_in_reasoning(self) -> bool:
        return self.context.prompt.rstrip().endswith(THINKING)

    def read(self) -> Steps[None]:
        if self._is_thinking:
            self.cut()
        while True:
            emit = self.reasoning if self._is_thinking else self.text
            mark = yield from self.source.until(MARKS, emit)
            if not mark:
                return
            if mark == ACTION and not self.context.tools:
                self.text(mark)
                continue
            self._is_thinking = mark == THINKING
            self.cut()
            while mark == ACTION:
                mark = yield from self._calls_behind(mark)


class CommandR(JsonCalls):
    """`Action:` and fenced JSON, a list of objects with `tool_name` and `parameters`: Command R and R+."""

    starts = check_marks("Action:")
    end = "```"
    form = CallFormat(
        "Action:",
        "Action: ```json\n[\n",
        "\n]\n```",
        ",\n",
        "parameters",
        "tool_name",
        is_list=True,
    )

    @classmethod
    def recognises(cls, template: str) -> bool:
        return "Action:" in template and "tool_name" in template

    def calls(self) -> Steps[None]:
        yield from self.source.spaces()
        if not (yield from self.source.accept("```")):
            raise Malformed("actions stand in a fence")
        yield from self.source.accept("json")
        yield from super().calls()
