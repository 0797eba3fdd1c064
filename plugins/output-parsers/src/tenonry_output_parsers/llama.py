"""Calls as bare JSON objects at the start of the answer, as Llama 3 writes them. Front end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tenonry.sampling_params import StructuredOutput
from tenonry_output_parsers.base import Tool
from tenonry_output_parsers.call_grammar import CallFormat
from tenonry_output_parsers.scanning import ScanningParser
from tenonry_output_parsers.text_input import Malformed, Steps

TAG = "<|python_tag|>"
FORMAT = CallFormat("", "", "", "; ", "parameters")


class Llama(ScanningParser):
    """`{"name": …, "parameters": {…}}`, perhaps after `<|python_tag|>`, several of them separated by semicolons.

    There is no other markup, so an object is a call only if it names a function that the request offers.
    """

    reads_calls = True
    markers: ClassVar[tuple[str, ...]] = (TAG,)

    @classmethod
    def recognises(cls, template: str) -> bool:
        return '"parameters"' in template and ("<|eom_id|>" in template or TAG in template)

    @classmethod
    def grammar(cls, tools: Sequence[Tool], *, parallel: bool) -> StructuredOutput:
        return FORMAT.demanded(tools, parallel=parallel)

    def read(self) -> Steps[None]:
        if not self.context.tools:
            return
        is_call = True
        while is_call:
            yield from self.source.accept(TAG)
            is_call = yield from self.attempt("", self._call())

    def _call(self) -> Steps[None]:
        yield from self.source.spaces()
        if (yield from self.source.accept(";", ",")):
            yield from self.source.spaces()
            yield from self.source.accept(TAG)
        yield from self.source.spaces()
        yield from self.call_object()

    def checked_name(self, name: str) -> str:
        if self.context.tool(name) is None:
            raise Malformed(name)
        return name
