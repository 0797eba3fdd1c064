"""Calls as function calls of Python: `[name(key="value"), …]`. Front end."""

from __future__ import annotations

import json
import re
from typing import ClassVar

from tenonry_output_parsers.json_values import MAX_HELD, MAX_KEY, schema_types, typed
from tenonry_output_parsers.python_values import pass_python, pass_python_string
from tenonry_output_parsers.scanning import ArgumentWriter, ScanningParser
from tenonry_output_parsers.text_input import Malformed, Steps

CODE = "<|python_start|>"
CODE_END = "<|python_end|>"
FENCES = ("```python\n", "```\n")
_NAME_STOP = re.compile(r"[^\w.:/-]")
_PRINTS_CALLS = re.compile(r"""name['"\])]*\s*[+~]\s*["']\(["']|func_name1\(params_name1=""")


class PythonCalls(ScanningParser):
    """Calls between two marks, as a list or one per line, perhaps in a code fence. Those that are bare are a list."""

    reads_calls = True
    start: ClassVar[str]
    end: ClassVar[str]
    is_bare: ClassVar[bool] = False

    @classmethod
    def recognises(cls, template: str) -> bool:
        return cls.start in template

    def read(self) -> Steps[None]:
        if not self.context.tools:
            return
        while (yield from self.source.until((self.start,), self.text)):
            yield from self._calls_behind(self.start)

    def _calls_behind(self, lead: str) -> Steps[bool]:
        """Read calls with all that belongs to them; returns whether there are any."""
        if not (yield from self.attempt(lead, self._calls())):
            return False
        yield from self.skip_to(self.end)
        return True

    def _calls(self) -> Steps[None]:
        source = self.source
        yield from source.spaces()
        yield from source.accept(*FENCES)
        is_list = bool((yield from source.accept("[")))
        if self.is_bare and not is_list:
            raise Malformed("no list")
        yield from source.spaces()
        if (yield from source.need()) == "{":
            yield from self._objects()
            return
        while True:
            yield from self._call()
            yield from source.spaces()
            if not (yield from source.accept(",", ";")):
                following = yield from source.peek()
                if is_list or not following or _NAME_STOP.match(following):
                    break
            yield from source.spaces()
        if is_list:
            yield from source.accept("]")

    def _objects(self) -> Steps[None]:
        """Calls as JSON, which models of these formats write now and then."""
        while True:
            yield from self.call_object()
            yield from self.source.spaces()
            if not (yield from self.source.accept(",")):
                break
            yield from self.source.spaces()
        yield from self.source.accept("]")

    def _call(self) -> Steps[None]:
        source = self.source
        if not source.is_limited:
            source.limit(MAX_HELD)
        name = yield from self._word()
        yield from source.expect("(")
        writer = ArgumentWriter(self.arguments)
        begun = False
        while True:
            yield from source.spaces()
            key = "" if (yield from source.accept(")")) else (yield from self._key())
            if not begun:
                self.start_call(self.checked_name(name))
                begun = True
            if not key:
                break
            writer.key(key)
            yield from self._value(writer, name, key)
            yield from source.spaces()
            if (yield from source.need()) != ")":
                yield from source.expect(",")
        writer.end()
        self.end_call()

    def _value(self, writer: ArgumentWriter, name: str, key: str) -> Steps[None]:
        """Write the value of an argument; one in quotes is no text where its schema names other types only."""
        source = self.source
        schema = self.context.schema(name, key)
        kinds = schema_types(schema)
        if not kinds or "string" in kinds or (yield from source.need()) not in "\"'":
            yield from pass_python(source, writer.value)
            return
        source.limit(MAX_HELD)
        held: list[str] = []
        yield from pass_python_string(source, held.append)
        source.unlimit()
        writer.value(typed(json.loads("".join(held)), schema))

    def _key(self) -> Steps[str]:
        """The name of an argument, up to its value."""
        source = self.source
        has_limit = source.is_limited
        if not has_limit:
            source.limit(MAX_KEY)
        key = yield from self._word()
        yield from source.spaces()
        yield from source.expect("=")
        yield from source.spaces()
        if not has_limit:
            source.unlimit()
        return key

    def _word(self) -> Steps[str]:
        """A name of a function or of an argument."""
        pieces = []
        while True:
            pieces.append(self.source.before(_NAME_STOP))
            if _NAME_STOP.match((yield from self.source.need())):
                break
        word = "".join(pieces)
        if not word:
            raise Malformed("a name is missing")
        return word


class Pythonic(PythonCalls):
    """A bare list at the start of the answer: Llama 4, Llama 3.2, ToolACE.

    There is no other markup, so it is a call only if it names a function that the request offers.
    """

    start = CODE
    end = CODE_END
    is_bare = True
    markers: ClassVar[tuple[str, ...]] = (CODE, CODE_END)

    @classmethod
    def recognises(cls, template: str) -> bool:
        """Return True if a template shows calls with round brackets; formats with markup are checked before."""
        return "tool_calls" in template and _PRINTS_CALLS.search(template) is not None

    def read(self) -> Steps[None]:
        if not self.context.tools:
            return
        yield from self.source.accept(CODE)
        yield from self._calls_behind("")

    def checked_name(self, name: str) -> str:
        if self.context.tool(name) is None:
            raise Malformed(name)
        return name


class Lfm2(PythonCalls):
    """`<|tool_call_start|>[…]<|tool_call_end|>`: LFM2, and MiniCPM 3 with a code fence."""

    start = "<|tool_call_start|>"
    end = "<|tool_call_end|>"
    markers: ClassVar[tuple[str, ...]] = (start, end)


class Olmo(PythonCalls):
    """`<function_calls>` with a call per line: Olmo 3."""

    start = "<function_calls>"
    end = "</function_calls>"
    markers: ClassVar[tuple[str, ...]] = (start, end)
