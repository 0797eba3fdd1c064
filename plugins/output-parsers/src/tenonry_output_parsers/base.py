"""The interface of output parsers: one object reads one completion, in pieces. Front end, event loop."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tenonry.sampling_params import StructuredOutput
from tenonry_output_parsers.events import Event


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` is a JSON schema of its arguments."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False


@dataclass(frozen=True, slots=True)
class ParserContext:
    """Context available before the first token of a completion.

    `tools` are empty if the request has none, or forbids calls. `prompt` is the end of the prompt's text: some chat
    templates begin the answer themselves.
    """

    tools: tuple[Tool, ...] = ()
    prompt: str = ""

    def tool(self, name: str) -> Tool | None:
        """The tool of that name."""
        return next((tool for tool in self.tools if tool.name == name), None)

    def schema(self, name: str, argument: str) -> object:
        """The JSON schema of an argument of that tool; None if there is none."""
        tool = self.tool(name)
        properties = tool.parameters.get("properties") if tool is not None else None
        return properties.get(argument) if isinstance(properties, dict) else None


class OutputParser(ABC):
    """Reads one completion: reasoning, text, and calls of tools.

    - The events, with neighbours merged, depend on the text alone: not on how it was split.
    - Every call that starts ends, at the latest in `close`; calls do not overlap.
    - Text that is no markup of the format is passed on; nothing that looks like an answer is dropped.
    - No text makes it raise, hold more than a bounded part of the answer, or take more than linear time.

    `reads_calls`: it finds calls of tools. `ends_reasoning`: the text that ends reasoning begun by the prompt.
    `markers`: texts that a tokenizer may hold as special tokens, which the parser must see; other special tokens never
    reach it.
    """

    interface_version: ClassVar[int] = 1
    reads_calls: ClassVar[bool] = False
    ends_reasoning: ClassVar[str] = ""
    markers: ClassVar[tuple[str, ...]] = ()

    def __init__(self, context: ParserContext) -> None:
        self.context = context

    @property
    def begins_in_reasoning(self) -> bool:
        """True if the prompt has begun the reasoning, so that only `ends_reasoning` ends it."""
        return False

    @abstractmethod
    def feed(self, text: str, token_ids: Sequence[int]) -> list[Event]:
        """Parse more text; returns its events.

        `token_ids` are the tokens that arrived with it; a character whose tokens are incomplete comes with later ones.
        """

    @abstractmethod
    def close(self) -> list[Event]:
        """The events after the last text. Called once, also where the answer was cut off."""

    @classmethod
    def grammar(cls, tools: Sequence[Tool], *, parallel: bool) -> StructuredOutput | None:
        """Grammar of an answer that calls one of the tools, or several if they may be parallel.

        With None the answer is a JSON list of calls, which the server parses itself. The choice of tools is already
        made: all of them if `tool_choice` is `required`, one if it names one.
        """
        return None

    @classmethod
    def strict_grammar(cls, tools: Sequence[Tool]) -> StructuredOutput | None:
        """Grammar of text or calls, with arguments that follow the schema of strict tools; None if not expressible.

        For requests that leave the choice to the model and have a strict tool.
        """
        return None

    @classmethod
    def recognises(cls, template: str) -> bool:
        """Return True if the source of a chat template shows that its model writes this format."""
        return False

    @classmethod
    def new_call_id(cls) -> str:
        """An id for a call, of the form that the model's chat template takes."""
        return f"call_{secrets.token_hex(12)}"
