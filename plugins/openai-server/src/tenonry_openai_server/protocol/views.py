"""Visible parts of a completion: the meaning of `echo`, of `max_tokens=0` and of log-probabilities, for streams and
whole answers alike. Front end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tenonry.outputs import CompletionOutput, Logprob, RequestOutput
from tenonry_openai_server.protocol.logprobs import (
    chat_logprobs,
    completion_logprobs,
    prompt_logprobs,
)
from tenonry_openai_server.protocol.options import ResponseContext
from tenonry_openai_server.protocol.responses import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprobs,
)
from tenonry_openai_server.protocol.tokens import TextOffsets


class ShownTokens(NamedTuple):
    """Part of a choice. `token_ids`: of the answer; log-probabilities also cover an echoed prompt."""

    text: str
    token_ids: list[int]
    logprobs: CompletionLogprobs | None


class CompletionView:
    """One completion of /v1/completions, shown part by part; a whole answer is one part."""

    __slots__ = ("_begun", "_context", "_offsets")

    def __init__(self, context: ResponseContext) -> None:
        self._context = context
        self._offsets = TextOffsets()
        self._begun = False

    def show(self, output: RequestOutput, completion: CompletionOutput) -> ShownTokens:
        """Return the next part. The first one includes the prompt, if echoed."""
        options = self._context.options
        echoed = output if options.echo and not self._begun else None
        self._begun = True
        text = "" if options.score_only else completion.text
        token_ids = [] if options.score_only else completion.token_ids
        if echoed is not None:
            text = self._context.texts.prompt(echoed) + text
        logprobs = None
        if options.num_logprobs is not None:
            positions = completion.logprobs or ()
            logprobs = self._logprobs(token_ids, positions, echoed)
        return ShownTokens(text, token_ids, logprobs)

    def _logprobs(
        self,
        token_ids: Sequence[int],
        positions: Sequence[dict[int, Logprob]],
        echoed: RequestOutput | None,
    ) -> CompletionLogprobs:
        texts = self._context.texts
        all_ids = list(token_ids)
        all_positions: list[dict[int, Logprob] | None] = list(positions)
        offsets: list[int] = []
        if echoed is not None:
            prompt_ids = echoed.prompt_token_ids
            all_ids = [*prompt_ids, *all_ids]
            all_positions = [*(echoed.prompt_logprobs or [None] * len(prompt_ids)), *all_positions]
            offsets += [self._offsets.advance(data) for data in texts.prompt_bytes(echoed)]
            self._offsets.move_to(len(texts.prompt(echoed)))
        offsets += [self._offsets.advance(data) for data in texts.token_bytes(token_ids)]
        return completion_logprobs(all_ids, all_positions, offsets, texts)


def shown_chat_logprobs(
    context: ResponseContext, completion: CompletionOutput
) -> ChatLogprobs | None:
    """Log-probabilities of a part of a chat's answer, or None if not requested."""
    top = context.options.num_logprobs
    if top is None:
        return None
    return chat_logprobs(completion.token_ids, completion.logprobs or [], context.texts, top)


def shown_prompt_logprobs(context: ResponseContext, output: RequestOutput) -> PromptLogprobs | None:
    """Log-probabilities of the prompt, or None if not requested."""
    if not context.options.prompt_logprobs or output.prompt_logprobs is None:
        return None
    return prompt_logprobs(output.prompt_logprobs, context.texts)
