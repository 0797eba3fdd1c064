"""Calls as elements with names in their tags: `<invoke name="…"><parameter name="…">`. Front end."""

from __future__ import annotations

from typing import ClassVar

from tenonry_output_parsers.json_values import MAX_KEY
from tenonry_output_parsers.scanning import ArgumentWriter
from tenonry_output_parsers.tagged import TaggedParser
from tenonry_output_parsers.tagged_grammar import TaggedFormat
from tenonry_output_parsers.text_input import Emit, EndOfText, Malformed, Steps, check_marks

ANGLE = check_marks(">")
TEXT = {"type": "string"}
ANY = {"type": ["object", "array", "number", "boolean", "null", "string"]}


class InvokeParser(TaggedParser):
    """Common base of formats with `start`, elements `invoke`, which contain elements `parameter`, and `end`.

    `invoke` and `parameter` are the beginnings of their tags, before the name. An empty `start` is none.
    """

    start: ClassVar[str] = ""
    end: ClassVar[str] = ""
    invoke: ClassVar[str]
    invoke_end: ClassVar[str]
    parameter: ClassVar[str]
    parameter_end: ClassVar[str]

    @classmethod
    def recognises(cls, template: str) -> bool:
        return (cls.start or cls.invoke) in template

    def read(self) -> Steps[None]:
        if not self.context.tools:
            return
        starts = check_marks(*filter(None, (self.start, self.invoke)))
        ends = tuple(filter(None, (self.end, *starts)))
        mark = ""
        while mark := mark or (yield from self.source.until(starts, self.text)):
            has_call = yield from self.attempt(mark, self._call(has_tag=mark == self.invoke))
            mark = ""
            if has_call:
                found = yield from self.skip_to(*ends)
                mark = found if found in starts else ""

    def _call(self, *, has_tag: bool) -> Steps[None]:
        source = self.source
        if not has_tag:
            yield from source.spaces()
            if not (yield from source.accept(self.invoke)):
                raise Malformed("no call follows")
        head, _ = yield from source.collect(ANGLE)
        name = _first_name(head)
        self.start_call(name)
        writer = ArgumentWriter(self.arguments)
        marks = (self.parameter, self.invoke_end)
        while True:
            mark = yield from source.until(marks, _ignore)
            if mark != self.parameter:
                break
            source.limit(MAX_KEY)
            head, _ = yield from source.collect(ANGLE)
            source.unlimit()
            place = (name, _first_name(head))
            yield from self.value(writer, place, (self.parameter_end,), self.schema_of(head))
        if not mark:
            raise EndOfText
        writer.end()
        self.end_call()

    def schema_of(self, head: str) -> object:
        """Type declared by a tag for its value; None if it follows from the function's schema."""
        return None


class MiniMax(InvokeParser):
    """`<minimax:tool_call>` around `<invoke name="…">`: MiniMax M2."""

    start = "<minimax:tool_call>"
    end = "</minimax:tool_call>"
    invoke = "<invoke name="
    invoke_end = "</invoke>"
    parameter = "<parameter name="
    parameter_end = "</parameter>"
    markers: ClassVar[tuple[str, ...]] = (start, end)
    form = TaggedFormat(
        start,
        '\n<invoke name="{name}">\n',
        f"</invoke>\n{end}",
        '<parameter name="{key}">',
        "",
        parameter_end,
    )


class DeepSeekMarkup(InvokeParser):
    """`<｜DSML｜invoke name="…">` with `<｜DSML｜parameter name="…" string="true">`: DeepSeek V3.2 and later."""

    start = "<｜DSML｜function_calls>"
    end = "</｜DSML｜function_calls>"
    invoke = "<｜DSML｜invoke name="
    invoke_end = "</｜DSML｜invoke>"
    parameter = "<｜DSML｜parameter name="
    parameter_end = "</｜DSML｜parameter>"
    markers: ClassVar[tuple[str, ...]] = ("｜DSML｜",)
    trims = False
    form = TaggedFormat(
        start,
        '\n<｜DSML｜invoke name="{name}">\n',
        f"{invoke_end}\n{end}",
        '<｜DSML｜parameter name="{key}" string="{is_text}">',
        "",
        parameter_end,
    )

    @classmethod
    def recognises(cls, template: str) -> bool:
        return "｜DSML｜" in template and "tool_calls>" not in template

    def schema_of(self, head: str) -> object:
        if 'string="true"' in head:
            return TEXT
        return ANY if 'string="false"' in head else None


class DeepSeekToolMarkup(DeepSeekMarkup):
    """The same in `<｜DSML｜tool_calls>`: DeepSeek V4."""

    start = "<｜DSML｜tool_calls>"
    end = "</｜DSML｜tool_calls>"

    @classmethod
    def recognises(cls, template: str) -> bool:
        return "｜DSML｜" in template and "tool_calls>" in template

    form = TaggedFormat(
        start,
        '\n<｜DSML｜invoke name="{name}">\n',
        f"</｜DSML｜invoke>\n{end}",
        '<｜DSML｜parameter name="{key}" string="{is_text}">',
        "",
        "</｜DSML｜parameter>",
    )


class MiniCpm(InvokeParser):
    """`<function name="…"><param name="…">…</param></function>`, values perhaps in CDATA: MiniCPM 5."""

    invoke = "<function name="
    invoke_end = "</function>"
    parameter = "<param name="
    parameter_end = "</param>"
    trims = False
    data: ClassVar[tuple[str, str]] = ("<![CDATA[", "]]>")
    form = TaggedFormat(
        "<function", ' name="{name}">', invoke_end, '<param name="{key}">', "", parameter_end
    )

    @classmethod
    def recognises(cls, template: str) -> bool:
        return cls.invoke in template and cls.parameter in template

    def text_value(self, emit: Emit, ends: tuple[str, ...]) -> Steps[str]:
        begin, end = self.data
        if (yield from self.source.accept(begin)):
            yield from self.source.until((end,), emit)
            emit = _ignore
        return (yield from self.source.until(ends, emit))


def _first_name(head: str) -> str:
    """The name at the beginning of a tag's attributes, with quotes or without."""
    head = head.strip()
    if head[:1] in {'"', "'"}:
        return head[1:].partition(head[0])[0]
    return head.partition(" ")[0]


def _ignore(_: str) -> None:
    """Discard text between the elements of a call."""
