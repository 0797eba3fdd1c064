"""Reasoning before the answer, between two tags. Front end."""

from __future__ import annotations

from typing import ClassVar

from tenonry_output_parsers.base import ParserContext
from tenonry_output_parsers.scanning import MAX_SPACES, ScanningParser
from tenonry_output_parsers.text_input import Malformed, Steps


class Think(ScanningParser):
    """`<think>…</think>` at the start of the answer: DeepSeek, Qwen, GLM and many others.

    The start tag may be at the end of the prompt, as with some chat templates. A tag later in the answer is text: a
    model may well write about tags.
    """

    start: ClassVar[str] = "<think>"
    end: ClassVar[str] = "</think>"
    markers: ClassVar[tuple[str, ...]] = ("<think>", "</think>")
    ends_reasoning: ClassVar[str] = end
    answer: ClassVar[tuple[str, str] | None] = None  # tags around what follows

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._is_open = context.prompt.rstrip().endswith(self.start)

    @property
    def begins_in_reasoning(self) -> bool:
        return self._is_open

    @classmethod
    def recognises(cls, template: str) -> bool:
        return cls.start in template or cls.end in template

    def read(self) -> Steps[None]:
        self.source.limit(MAX_SPACES + max(len(self.start), len(self.end)))
        try:
            yield from self.source.spaces()
            begins = yield from self.source.accept(self.start, self.end)
        except Malformed:
            begins = ""
        before = self.source.unlimit()
        if not (begins or self._is_open):
            self.text(before)
            return
        self.cut()
        if not begins:
            self.reasoning(before)
        if begins == self.end or (yield from self.source.until((self.end,), self.reasoning)):
            self.cut()
            if self.answer is not None:
                yield from self._answer(*self.answer)

    def _answer(self, start: str, end: str) -> Steps[None]:
        """Read the answer up to its end tag, if it begins with its start tag."""
        self.source.limit(MAX_SPACES + len(start))
        try:
            yield from self.source.spaces()
            begins = yield from self.source.accept(start)
        except Malformed:
            begins = ""
        before = self.source.unlimit()
        if not begins:
            self.text(before)
            return
        self.cut()
        if (yield from self.source.until((end,), self.text)):
            self.cut()


class MistralThink(Think):
    """`[THINK]…[/THINK]`: Mistral's reasoning models."""

    start = "[THINK]"
    end = "[/THINK]"
    markers = ("[THINK]", "[/THINK]")
    ends_reasoning = end


class SeedThink(Think):
    """`<seed:think>…</seed:think>`: Seed-OSS."""

    start = "<seed:think>"
    end = "</seed:think>"
    markers = ("<seed:think>", "</seed:think>")
    ends_reasoning = end


class MiniMaxThink(Think):
    """`<mm:think>…</mm:think>`: MiniMax M3."""

    start = "<mm:think>"
    end = "</mm:think>"
    markers = (start, end)
    ends_reasoning = end


class MiniCpmThink(Think):
    """`<|thought_start|>…<|thought_end|>`: MiniCPM 3."""

    start = "<|thought_start|>"
    end = "<|thought_end|>"
    markers = (start, end)
    ends_reasoning = end


class AprielThink(Think):
    """Text that begins in the prompt, up to `[BEGIN FINAL RESPONSE]`: Apriel."""

    start = "Here are my reasoning steps:"
    end = "[BEGIN FINAL RESPONSE]"
    markers = (end,)
    ends_reasoning = end

    @classmethod
    def recognises(cls, template: str) -> bool:
        return cls.start in template and cls.end in template


class GraniteThink(Think):
    """Reasoning, then `<response>…</response>`: Granite 3.3, Ernie 4.5."""

    answer = ("<response>", "</response>")
    markers = ("<think>", "</think>", *answer)

    @classmethod
    def recognises(cls, template: str) -> bool:
        return cls.start in template and cls.answer[0] in template


class HunyuanThink(Think):
    """Reasoning, then `<answer>…</answer>`: Hunyuan."""

    answer = ("<answer>", "</answer>")
    markers = ("<think>", "</think>", *answer)

    @classmethod
    def recognises(cls, template: str) -> bool:
        return cls.start in template and cls.answer[0] in template
