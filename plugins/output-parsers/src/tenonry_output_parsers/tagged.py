"""Calls with one tag per argument, each as plain text. Front end.

The type of an argument follows from the schema of the function: strings are passed on while they arrive, other values
once they are complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tenonry.sampling_params import StructuredOutput
from tenonry_output_parsers.base import Tool
from tenonry_output_parsers.json_values import MAX_HELD, MAX_KEY, schema_types, typed
from tenonry_output_parsers.python_values import python_value
from tenonry_output_parsers.scanning import ArgumentWriter, ScanningParser, StringWriter
from tenonry_output_parsers.tagged_grammar import TaggedFormat
from tenonry_output_parsers.text_input import Emit, EndOfText, Malformed, Steps, check_marks

TOOL = "<tool_call>"
TOOL_END = "</tool_call>"
FUNCTION = "<function="
FUNCTION_END = "</function>"
PARAMETER = "<parameter="
PARAMETER_END = "</parameter>"
KEY = "<arg_key>"
KEY_END = "</arg_key>"
VALUE = "<arg_value>"
VALUE_END = "</arg_value>"
ANGLE = check_marks(">")
NAME_MARKS = check_marks(KEY, TOOL_END)
QWEN = TaggedFormat(
    TOOL,
    f"\n{FUNCTION}{{name}}>\n",
    f"{FUNCTION_END}\n{TOOL_END}",
    f"{PARAMETER}{{key}}>\n",
    "\n",
    PARAMETER_END,
    r"<parameter=|<\/function>|<\/tool_call>",
)
GLM = TaggedFormat(TOOL, "{name}\n", TOOL_END, f"{KEY}{{key}}{KEY_END}\n{VALUE}", "", VALUE_END)


class TaggedParser(ScanningParser):
    """Common base of formats with an argument per tag."""

    reads_calls = True
    form: ClassVar[TaggedFormat]
    trims: ClassVar[bool] = True  # a line break at either end of a text is markup

    @classmethod
    def grammar(cls, tools: Sequence[Tool], *, parallel: bool) -> StructuredOutput | None:
        return cls.form.demanded(tools, parallel=parallel)

    @classmethod
    def strict_grammar(cls, tools: Sequence[Tool]) -> StructuredOutput | None:
        return cls.form.allowed(tools)

    def value(
        self,
        writer: ArgumentWriter,
        place: tuple[str, str],
        ends: tuple[str, ...],
        schema: object = None,
    ) -> Steps[str]:
        """Write the argument at `place`, a function and a key, whose text ends with one of `ends`; returns which.

        `schema`: type declared by markup, if any. Raises EndOfText.
        """
        writer.key(place[1])
        schema = self.context.schema(*place) if schema is None else schema
        kinds = schema_types(schema)
        if not kinds or kinds == {"string"}:
            text = StringWriter(writer.value, trims=self.trims)
            mark = yield from self.text_value(text.push, ends)
            if not mark:
                raise EndOfText
            text.end()
            return mark
        self.source.limit(MAX_HELD)
        held, mark = yield from self.source.collect(ends)
        self.source.unlimit()
        held = held.removeprefix("\n").removesuffix("\n")
        found = typed(held, schema)
        if found.startswith('"') and kinds & {"array", "object"}:
            found = python_value(held.strip()) or found
        writer.value(found)
        return mark

    def text_value(self, emit: Emit, ends: tuple[str, ...]) -> Steps[str]:
        """Pass on the text of an argument up to one of `ends`; returns which, or ""."""
        return (yield from self.source.until(ends, emit))

    def key(self, ends: tuple[str, ...]) -> Steps[str]:
        """The name of an argument, up to one of `ends`."""
        self.source.limit(MAX_KEY)
        key, _ = yield from self.source.collect(ends)
        self.source.unlimit()
        return key.strip()


class QwenCoder(TaggedParser):
    """`<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`: Qwen3-Coder, Qwen 3.5.

    Models sometimes omit the outer tags, and end tags of parameters, too.
    """

    tool: ClassVar[str] = TOOL
    tool_end: ClassVar[str] = TOOL_END
    form = QWEN
    markers: ClassVar[tuple[str, ...]] = (TOOL, TOOL_END)

    @classmethod
    def recognises(cls, template: str) -> bool:
        return FUNCTION in template and PARAMETER in template

    def read(self) -> Steps[None]:
        if not self.context.tools:
            return
        starts = (self.tool, FUNCTION)
        mark = ""
        while True:
            if mark != FUNCTION:
                mark = yield from self.source.until(starts, self.text)
            if not mark:
                return
            if (yield from self.attempt(mark, self._call(is_wrapped=mark == self.tool))):
                mark = yield from self.skip_to(self.tool_end, FUNCTION)
            else:
                mark = ""

    def _call(self, *, is_wrapped: bool) -> Steps[None]:
        source = self.source
        if is_wrapped:
            yield from source.spaces()
            if not (yield from source.accept(FUNCTION)):
                raise Malformed("no function follows")
        name, _ = yield from source.collect(ANGLE)
        name = name.strip()
        self.start_call(name)
        writer = ArgumentWriter(self.arguments)
        ends = (FUNCTION_END, self.tool_end)
        mark = ""
        while True:
            if mark != PARAMETER:
                mark = yield from source.until((PARAMETER, *ends), _ignore)
            if mark != PARAMETER:
                break
            key = yield from self.key(ANGLE)
            mark = yield from self.value(writer, (name, key), (PARAMETER_END, PARAMETER, *ends))
            if mark in ends:
                break
        if not mark:
            raise EndOfText
        writer.end()
        self.end_call()


class SeedCoder(QwenCoder):
    """The same in `<seed:tool_call>`: Seed-OSS."""

    tool = "<seed:tool_call>"
    tool_end = "</seed:tool_call>"
    markers = (tool, tool_end)
    form = TaggedFormat(
        tool,
        f"\n{FUNCTION}{{name}}>\n",
        f"{FUNCTION_END}\n{tool_end}",
        f"{PARAMETER}{{key}}>",
        "",
        PARAMETER_END,
        r"<parameter=|<\/function>|<\/seed:tool_call>",
    )

    @classmethod
    def recognises(cls, template: str) -> bool:
        return cls.tool in template


class Glm(TaggedParser):
    """`<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`: GLM 4.5 and later."""

    form = GLM
    markers: ClassVar[tuple[str, ...]] = (TOOL, TOOL_END, KEY, KEY_END, VALUE, VALUE_END)
    start: ClassVar[tuple[str, ...]] = check_marks(TOOL)
    key_end: ClassVar[tuple[str, ...]] = check_marks(KEY_END)
    parts: ClassVar[tuple[str, ...]] = check_marks(VALUE, TOOL_END)
    value_end: ClassVar[tuple[str, ...]] = check_marks(VALUE_END)

    @classmethod
    def recognises(cls, template: str) -> bool:
        return TOOL in template and KEY in template

    def read(self) -> Steps[None]:
        if not self.context.tools:
            return
        while (yield from self.source.until(self.start, self.text)):
            yield from self.attempt(TOOL, self._call())

    def _call(self) -> Steps[None]:
        name, mark = yield from self.source.collect(NAME_MARKS)
        name = name.strip()
        self.start_call(name)
        writer = ArgumentWriter(self.arguments)
        while mark == KEY:
            key = yield from self.key(self.key_end)
            mark = yield from self.source.until(self.parts, _ignore)
            if mark == VALUE:
                yield from self.value(writer, (name, key), self.value_end)
                mark = yield from self.source.until(NAME_MARKS, _ignore)
        if not mark:
            raise EndOfText
        writer.end()
        self.end_call()


def _ignore(_: str) -> None:
    """Discard text between the tags of a call."""
