"""The output parsers of this server: chosen once, by name or by the model's chat template. Front end."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from tenonry.errors import ConfigError, PluginFault, TenonryError
from tenonry.info import PluginRecord
from tenonry.interfaces.io_processor import IOProcessor
from tenonry.outputs import RequestOutput
from tenonry.plugin.manager import resolve_point
from tenonry.sampling_params import StructuredOutput
from tenonry_openai_server.points import OUTPUT_PARSERS
from tenonry_output_parsers.auto import recognised
from tenonry_output_parsers.bare import BareCalls
from tenonry_output_parsers.base import OutputParser, ParserContext, Tool
from tenonry_output_parsers.call_grammar import with_tokens
from tenonry_output_parsers.chain import Chain
from tenonry_output_parsers.forced import forced_calls

logger = logging.getLogger("tenonry.server")

AUTO, NONE = "auto", "none"
MOST_PARSERS = 4
PROMPT_CHARS = 512  # of the prompt's end, that parsers see
PROMPT_TOKENS = 64

Found = tuple[type[OutputParser], PluginRecord]


def find_parsers(setting: str) -> list[Found]:
    """Classes for names joined by `+`. Raises PluginError, and ConfigError for too many."""
    names = [setting] if ":" in setting else setting.split("+")
    if len(names) > MOST_PARSERS:
        raise ConfigError(
            f"output_parser: {len(names)} names; at most {MOST_PARSERS} can be combined"
        )
    return [resolve_point(OUTPUT_PARSERS, name.strip()) for name in names]


def check_setting(setting: str) -> None:
    """Check the operator's parser names before the model loads. Raises as `find_parsers`."""
    if setting not in {AUTO, NONE}:
        find_parsers(setting)


def chosen_parsers(setting: str, io_processor: IOProcessor | None) -> OutputParsers | None:
    """Return the parsers of a server with this setting; None for plain text. Raises PluginError and ConfigError."""
    if setting == NONE or io_processor is None:
        return None
    if setting == AUTO:
        try:
            template = io_processor.chat_template()
        except TenonryError as error:
            logger.warning("no output parser: the chat template cannot be read: %s", error)
            return None
        if template is None:
            return None
        names = recognised(template, lambda name: resolve_point(OUTPUT_PARSERS, name)[0])
        if not names:
            return None
        setting = "+".join(names)
    found = find_parsers(setting)
    logger.info("output parser of chats: %s", setting)
    return OutputParsers(found, io_processor)


class ForcedAnswer(NamedTuple):
    """Grammar of an answer; `is_bare` if it is a JSON list of calls instead of the model's own format."""

    grammar: StructuredOutput
    is_bare: bool


class OutputParsers:
    """Parser classes of chat answers, in their order, and the special tokens of their model."""

    def __init__(self, found: Sequence[Found], io_processor: IOProcessor) -> None:
        self._found = found
        self._io_processor = io_processor
        self._shown = frozenset(marker for cls, _ in found for marker in cls.markers)
        self._hidden: dict[int, str] = {}
        self.name = "+".join(record.name for _, record in found)
        self.reads_calls = any(cls.reads_calls for cls, _ in found)
        self._special = self._special_tokens()
        self.needs_special_tokens = bool(self._special)

    def _special_tokens(self) -> dict[str, int]:
        """The markers that the tokenizer has as one special token each, with its id."""
        found = {}
        for marker in self._shown:
            ids = self._io_processor.encode(marker, add_special_tokens=False)
            if len(ids) != 1:
                continue
            if self._io_processor.token_bytes(ids, skip_special_tokens=True) == [b""]:
                found[marker] = ids[0]
        return found

    def hidden_text(self, token_id: int) -> str:
        """The text of a special token that is no marker of a parser; "" for all other tokens."""
        text = self._hidden.get(token_id)
        if text is None:
            io_processor = self._io_processor
            (skipped,) = io_processor.token_bytes([token_id], skip_special_tokens=True)
            (whole,) = io_processor.token_bytes([token_id])
            text = "" if skipped else whole.decode(errors="replace")
            text = "" if text in self._shown else text
            self._hidden[token_id] = text
        return text

    def open(self, output: RequestOutput, tools: tuple[Tool, ...], *, is_forced: bool) -> Chain:
        """A parser for one completion of this output. `is_forced`: a grammar makes it a JSON list of calls."""
        context = ParserContext(tools, self._end_of(output))
        parsers: list[OutputParser] = []
        for cls, record in self._found:
            if is_forced and cls.reads_calls:
                continue
            try:
                parsers.append(cls(context))
            except Exception as error:
                raise self.fault("its constructor", error, record) from error
        if is_forced:
            parsers.append(BareCalls(context))
        return Chain(parsers)

    def forced(self, prompt: object, tools: tuple[Tool, ...], *, parallel: bool) -> ForcedAnswer:
        """Return the grammar of an answer to this prompt that calls these tools. Raises RequestError.

        It applies after the reasoning if the prompt has begun one; else there is no reasoning.
        """
        start_after = self.start_after(prompt)
        for cls, _ in self._found:
            grammar = cls.grammar(tools, parallel=parallel) if cls.reads_calls else None
            grammar = self._in_tokens(cls, grammar)
            if grammar is not None:
                return ForcedAnswer(replace(grammar, start_after=start_after), is_bare=False)
        grammar = forced_calls(tools, parallel=parallel, start_after=start_after)
        return ForcedAnswer(grammar, is_bare=True)

    def strict(self, tools: tuple[Tool, ...]) -> StructuredOutput | None:
        """Return a grammar of text or calls of these tools, of which some are strict; None if the format has no grammar
        for it.

        Special tokens are no text, so there is none if reasoning markup in addition to the calls is such a token.
        Raises RequestError for schemas that are too large together.
        """
        for cls, _ in self._found:
            if not cls.reads_calls or set(self._special) - set(cls.markers):
                continue
            grammar = self._in_tokens(cls, cls.strict_grammar(tools))
            if grammar is not None:
                return grammar
        return None

    def _in_tokens(
        self, cls: type[OutputParser], grammar: StructuredOutput | None
    ) -> StructuredOutput | None:
        """Return the grammar with special tokens instead of markup; None if they cannot be inserted."""
        text = grammar.grammar if grammar is not None else None
        if grammar is None or text is None:
            return grammar
        tokens = {
            marker: token_id for marker, token_id in self._special.items() if marker in cls.markers
        }
        text = with_tokens(text, tokens)
        return replace(grammar, grammar=text) if text is not None else None

    def start_after(self, prompt: object) -> tuple[int, ...]:
        """Tokens that end the reasoning if this prompt has begun it: the answer's form applies after them."""
        context = ParserContext((), self._end_of_prompt(prompt))
        for cls, _ in self._found:
            if cls.ends_reasoning and cls(context).begins_in_reasoning:
                return tuple(
                    self._io_processor.encode(cls.ends_reasoning, add_special_tokens=False)
                )
        return ()

    def _end_of_prompt(self, prompt: object) -> str:
        if isinstance(prompt, dict) and "prompt_token_ids" in prompt:
            return self._io_processor.decode(prompt["prompt_token_ids"][-PROMPT_TOKENS:])
        text = prompt.get("prompt") if isinstance(prompt, dict) else prompt
        return text[-PROMPT_CHARS:] if isinstance(text, str) else ""

    def _end_of(self, output: RequestOutput) -> str:
        if output.prompt is not None:
            return output.prompt[-PROMPT_CHARS:]
        return self._io_processor.decode(output.prompt_token_ids[-PROMPT_TOKENS:])

    def new_call_id(self) -> str:
        """Return an id in the form accepted by the model's template."""
        readers = [cls for cls, _ in self._found if cls.reads_calls]
        return (readers[-1] if readers else OutputParser).new_call_id()

    def fault(self, call: str, error: Exception, record: PluginRecord | None = None) -> PluginFault:
        """The error of a parser, with its name."""
        record = record or self._found[-1][1]
        return PluginFault(self.name, record.distribution, record.version, call, error)
