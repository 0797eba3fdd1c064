"""One completion of a chat, read by its parsers: events, filtered by the request's options. Front end."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from tenonry.errors import RequestError, TenonryError
from tenonry.outputs import CompletionOutput, RequestOutput
from tenonry.sampling_params import SamplingParams, StructuredOutput
from tenonry_openai_server.parsers import OutputParsers
from tenonry_output_parsers.base import Tool
from tenonry_output_parsers.chain import Chain
from tenonry_output_parsers.events import CallArguments, CallEnd, CallStart, Event, ReasoningDelta


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """Parsing options for the answers of one request.

    `tools`: callable ones. `hides_special`: special tokens appear in the text and are removed, except markup. `wanted`:
    the request demands a call of one of these. `is_bare`: a grammar makes the answer a JSON list of calls.
    """

    parsers: OutputParsers
    tools: tuple[Tool, ...] = ()
    parallel: bool = True
    reasoning: bool = True
    hides_special: bool = False
    wanted: tuple[Tool, ...] = ()
    is_bare: bool = False

    def forced(self, prompt: object, params: SamplingParams) -> tuple[AnswerForm, SamplingParams]:
        """The form and the parameters of a request that demands a call of one of the wanted tools.

        Raises RequestError, also for a request that has structured output as well.
        """
        if params.structured_output is not None:
            raise RequestError(
                "tool_choice requires calls, so the answer cannot have another format; leave "
                "one of them out",
                "tool_choice",
            )
        forced = self.parsers.forced(prompt, self.wanted, parallel=self.parallel)
        form = dataclasses.replace(self, is_bare=forced.is_bare)
        return form, msgspec.structs.replace(params, structured_output=forced.grammar)

    def strict_grammar(self) -> StructuredOutput | None:
        """Return the grammar required by strict tools; None for no constraint. Raises RequestError."""
        if not any(tool.strict for tool in self.tools):
            return None
        return self.parsers.strict(self.tools)

    def open(self, output: RequestOutput) -> CompletionReader:
        """A reader of one completion. Raises PluginFault."""
        chain = self.parsers.open(output, self.tools, is_forced=self.is_bare)
        return CompletionReader(self, chain)


class CompletionReader:
    """Reads one completion, part by part; a whole answer is one part. `num_calls`: calls so far."""

    __slots__ = ("_call_ids", "_chain", "_form", "_hidden", "_is_dropping", "num_calls")

    def __init__(self, form: AnswerForm, chain: Chain) -> None:
        self._form = form
        self._chain = chain
        self._hidden = HiddenTexts(form.parsers.hidden_text) if form.hides_special else None
        self._is_dropping = False
        self._call_ids: set[str] = set()
        self.num_calls = 0

    def read(self, completion: CompletionOutput) -> list[Event]:
        """The events of the next part. Raises PluginFault."""
        is_last = completion.finish_reason is not None
        text = completion.text
        if self._hidden is not None:
            text = self._hidden.without(text, completion.token_ids, is_last=is_last)
        try:
            events = self._chain.feed(text, completion.token_ids) if text else []
            if is_last:
                events = [*events, *self._chain.close()]
        except TenonryError:
            raise
        except Exception as error:
            raise self._form.parsers.fault("feed", error) from error
        return [self._with_id(event) for event in events if self._is_wanted(event)]

    def _with_id(self, event: Event) -> Event:
        """Return the event; a call receives an id unless the model wrote a unique one."""
        if not isinstance(event, CallStart):
            return event
        call_id = event.call_id
        if not call_id or call_id in self._call_ids:
            call_id = self._form.parsers.new_call_id()
        self._call_ids.add(call_id)
        return CallStart(event.name, call_id)

    def _is_wanted(self, event: Event) -> bool:
        if isinstance(event, ReasoningDelta):
            return self._form.reasoning
        if isinstance(event, CallStart):
            self._is_dropping = self.num_calls > 0 and not self._form.parallel
            self.num_calls += not self._is_dropping
        if isinstance(event, CallStart | CallArguments | CallEnd):
            return not self._is_dropping
        return True

    def finish_reason(self, completion: CompletionOutput) -> str | None:
        """Finish reason of the answer, as shown to clients."""
        reason = completion.finish_reason
        return "tool_calls" if reason == "stop" and self.num_calls else reason


class HiddenTexts:
    """Removes the texts of hidden special tokens from a stream's text.

    The text of a token may come later than its id, if a stop string could begin; ordinary tokens may spell it, too. So
    a text is looked for only while a hidden token has arrived whose text has not.
    """

    __slots__ = ("_expected", "_held", "_text_of")

    def __init__(self, text_of: Callable[[int], str]) -> None:
        self._text_of = text_of
        self._expected: deque[str] = deque()
        self._held = ""

    def without(self, text: str, token_ids: list[int], *, is_last: bool) -> str:
        """Return the part of the text that is certain now."""
        self._expected.extend(filter(None, map(self._text_of, token_ids)))
        if not self._expected:
            return text
        text = self._held + text
        self._held = ""
        shown = []
        while self._expected:
            before, found, after = text.partition(self._expected[0])
            if not found:
                break
            shown.append(before)
            text = after
            self._expected.popleft()
        if self._expected and not is_last:
            kept = _overlap(text, self._expected[0])
            self._held = text[len(text) - kept :]
            text = text[: len(text) - kept]
        return "".join([*shown, text])


def _overlap(text: str, wanted: str) -> int:
    """Length of the longest suffix of the text that is a prefix of `wanted`."""
    longest = min(len(text), len(wanted) - 1)
    return next((size for size in range(longest, 0, -1) if wanted.startswith(text[-size:])), 0)
