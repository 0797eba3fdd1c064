"""Calls and reasoning of Gemma's models. Front end."""

from __future__ import annotations

import json
import re
from typing import ClassVar

from tenonry_output_parsers.json_values import MAX_HELD, MAX_KEY, pass_value
from tenonry_output_parsers.python_values import MAX_DEPTH, scalar
from tenonry_output_parsers.scanning import ScanningParser
from tenonry_output_parsers.text_input import EndOfText, Malformed, Steps
from tenonry_output_parsers.think import Think

LEAD = "call:"
_NAME_STOP = re.compile(r"[{\s<]")
_KEY_STOP = re.compile(r"[:,{}\[\]<]")
_SCALAR_STOP = re.compile(r"[,}\]<]")


class Gemma(ScanningParser):
    """`<|tool_call>call:name{key:<|"|>text<|"|>,other:1}<tool_call|>`: Gemma 4."""

    reads_calls = True
    start: ClassVar[str] = "<|tool_call>"
    end: ClassVar[str] = "<tool_call|>"
    quote: ClassVar[str] = '<|"|>'
    markers: ClassVar[tuple[str, ...]] = (start, end, quote)

    @classmethod
    def recognises(cls, template: str) -> bool:
        return cls.start in template and cls.quote in template

    def read(self) -> Steps[None]:
        if not self.context.tools:
            return
        mark = ""
        while mark := mark or (yield from self.source.until((self.start,), self.text)):
            has_call = yield from self.attempt(mark, self._call())
            mark = ""
            if has_call:
                found = yield from self.skip_to(self.end, self.start)
                mark = found if found == self.start else ""

    def _call(self) -> Steps[None]:
        source = self.source
        yield from source.spaces()
        yield from source.accept(LEAD)
        pieces = []
        while True:
            pieces.append(source.before(_NAME_STOP))
            if _NAME_STOP.match((yield from source.need())):
                break
        yield from source.spaces()
        if (yield from source.need()) != "{":
            raise Malformed("the call has no arguments")
        self.start_call("".join(pieces))
        yield from self._pass_object(0)
        self.end_call()

    def _pass_value(self, depth: int) -> Steps[None]:
        source = self.source
        yield from source.spaces()
        first = yield from source.need()
        if first == "{":
            yield from self._pass_object(depth + 1)
        elif first == "[":
            yield from self._pass_list(depth + 1)
        elif first == '"':
            yield from pass_value(source, self.arguments)
        elif first == self.quote[0]:
            yield from self._pass_text()
        else:
            yield from self._pass_scalar()

    def _pass_object(self, depth: int) -> Steps[None]:
        source = self.source
        yield from self._enter(depth)
        lead = "{"
        while True:
            yield from source.spaces()
            if (yield from source.accept("}")):
                break
            self.arguments(lead)
            lead = ", "
            yield from self._pass_key()
            yield from self._pass_value(depth)
            yield from self._separator("}")
        self.arguments("{}" if lead == "{" else "}")

    def _pass_list(self, depth: int) -> Steps[None]:
        source = self.source
        yield from self._enter(depth)
        lead = "["
        while True:
            yield from source.spaces()
            if (yield from source.accept("]")):
                break
            self.arguments(lead)
            lead = ", "
            yield from self._pass_value(depth)
            yield from self._separator("]")
        self.arguments("[]" if lead == "[" else "]")

    def _enter(self, depth: int) -> Steps[None]:
        if depth == MAX_DEPTH:
            raise Malformed("nested too deeply")
        yield from self.source.take()

    def _separator(self, close: str) -> Steps[None]:
        yield from self.source.spaces()
        if (yield from self.source.need()) != close:
            yield from self.source.expect(",")

    def _pass_key(self) -> Steps[None]:
        source = self.source
        first = yield from source.need()
        if first == '"':
            yield from pass_value(source, self.arguments)
        elif first == self.quote[0]:
            yield from self._pass_text()
        else:
            text = yield from self._bare(_KEY_STOP, MAX_KEY)
            self.arguments(json.dumps(text, ensure_ascii=False))
        yield from source.spaces()
        yield from source.expect(":")
        self.arguments(": ")

    def _pass_text(self) -> Steps[None]:
        """A text between two marks that represent quotes."""
        source = self.source
        if not (yield from source.accept(self.quote)):
            raise Malformed("markup")
        self.arguments('"')

        def show(text: str) -> None:
            self.arguments(json.dumps(text, ensure_ascii=False)[1:-1])

        if not (yield from source.until((self.quote,), show)):
            raise EndOfText
        self.arguments('"')

    def _pass_scalar(self) -> Steps[None]:
        self.arguments(scalar((yield from self._bare(_SCALAR_STOP, MAX_HELD))))

    def _bare(self, stop: re.Pattern[str], most: int) -> Steps[str]:
        """A text without quotes."""
        source = self.source
        source.limit(most)
        pieces = []
        while True:
            pieces.append(source.before(stop))
            if stop.match((yield from source.need())):
                break
        source.unlimit()
        text = "".join(pieces).strip()
        if not text:
            raise Malformed("a value is missing")
        return text


class FunctionGemma(Gemma):
    """`<start_function_call>call:name{key:<escape>text<escape>}<end_function_call>`: FunctionGemma."""

    start = "<start_function_call>"
    end = "<end_function_call>"
    quote = "<escape>"
    markers = (start, end, quote)


class GemmaThink(Think):
    """`<|channel>thought … <channel|>`: Gemma 4."""

    start = "<|channel>thought"
    end = "<channel|>"
    markers = ("<|channel>", "<channel|>")
    ends_reasoning = end

    @classmethod
    def recognises(cls, template: str) -> bool:
        return "<|channel>" in template and cls.end in template
