"""Log-probabilities as the engine gives them, in the shapes that OpenAI's clients expect. Front end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tenonry.interfaces.io_processor import IOProcessor
from tenonry.outputs import Logprob, RequestOutput
from tenonry_openai_server.protocol.responses import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenLogprob,
    TopLogprob,
)

LOWEST = -9999.0  # JSON has no infinity; this is the number that OpenAI uses for 'never'


class TokenTexts:
    """The text of single tokens, as lists of log-probabilities show them."""

    __slots__ = ("_as_ids", "_io_processor")

    def __init__(self, io_processor: IOProcessor | None, *, as_ids: bool = False) -> None:
        self._io_processor, self._as_ids = io_processor, as_ids

    def __call__(self, token_id: int, logprob: Logprob | None = None) -> str:
        if self._as_ids or self._io_processor is None:
            return f"token_id:{token_id}"
        if logprob is not None and logprob.decoded_token is not None:
            return logprob.decoded_token
        return self._io_processor.decode([token_id])

    def prompt(self, output: RequestOutput) -> str:
        """The text of a prompt, also of one that was given as token ids."""
        if output.prompt is not None or self._io_processor is None:
            return output.prompt or ""
        return self._io_processor.decode(output.prompt_token_ids)


def _value(logprob: Logprob) -> float:
    return max(logprob.logprob, LOWEST)


def completion_logprobs(
    token_ids: Sequence[int],
    positions: Sequence[Mapping[int, Logprob] | None],
    texts: TokenTexts,
    offset: int = 0,
) -> CompletionLogprobs:
    """The shape of completions. `offset`: characters of the text before the first of these tokens."""
    shape = CompletionLogprobs([], [], [], [])
    for token_id, position in zip(token_ids, positions, strict=False):
        own = position.get(token_id) if position else None
        text = texts(token_id, own)
        shape.text_offset.append(offset)
        shape.tokens.append(text)
        shape.token_logprobs.append(_value(own) if own else None)
        shape.top_logprobs.append(
            {texts(i, lp): _value(lp) for i, lp in position.items()} if position else None
        )
        offset += len(text)
    return shape


def chat_logprobs(
    token_ids: Sequence[int],
    positions: Sequence[Mapping[int, Logprob]],
    texts: TokenTexts,
    top: int,
) -> ChatLogprobs:
    """The shape of chat completions, with the `top` most likely tokens of each position."""
    content = []
    for token_id, position in zip(token_ids, positions, strict=False):
        own = position.get(token_id)
        text = texts(token_id, own)
        best = sorted(position.items(), key=lambda entry: -entry[1].logprob)[:top]
        alternatives = [
            TopLogprob(t, _value(lp), _bytes(t)) for t, lp in ((texts(i, lp), lp) for i, lp in best)
        ]
        content.append(
            TokenLogprob(text, _value(own) if own else LOWEST, _bytes(text), alternatives)
        )
    return ChatLogprobs(content)


def _bytes(text: str) -> list[int]:
    return list(text.encode("utf-8", "replace"))


def prompt_logprobs(
    positions: Sequence[Mapping[int, Logprob] | None], texts: TokenTexts
) -> PromptLogprobs:
    """The log-probabilities of a prompt, by token id; the first position has none."""
    return [
        {str(i): PromptLogprob(_value(lp), lp.rank, texts(i, lp)) for i, lp in position.items()}
        if position
        else None
        for position in positions
    ]
