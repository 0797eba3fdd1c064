"""Log-probabilities of the engine, in the shapes that OpenAI's clients expect. Front end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tenonry.outputs import Logprob
from tenonry_openai_server.protocol.responses import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenLogprob,
    TopLogprob,
)
from tenonry_openai_server.protocol.tokens import TokenTexts

LOWEST = -9999.0  # JSON has no infinity; OpenAI uses this number for 'never'


def _value(logprob: Logprob) -> float:
    return max(logprob.logprob, LOWEST)


def completion_logprobs(
    token_ids: Sequence[int],
    positions: Sequence[Mapping[int, Logprob] | None],
    offsets: Iterable[int],
    texts: TokenTexts,
) -> CompletionLogprobs:
    """The shape of completions. `offsets`: where the text of each token begins, in characters of the whole text."""
    shape = CompletionLogprobs([], [], [], [])
    for token_id, position, offset in zip(token_ids, positions, offsets, strict=False):
        own = position.get(token_id) if position else None
        shape.text_offset.append(offset)
        shape.tokens.append(texts(token_id, own))
        shape.token_logprobs.append(_value(own) if own else None)
        shape.top_logprobs.append(
            {texts(i, lp): _value(lp) for i, lp in position.items()} if position else None
        )
    return shape


def chat_logprobs(
    token_ids: Sequence[int],
    positions: Sequence[Mapping[int, Logprob] | None],
    texts: TokenTexts,
    top: int,
) -> ChatLogprobs:
    """Format log-probabilities for chat completions, with the `top` most likely tokens of each position."""
    return ChatLogprobs(
        [
            _token_logprob(token_id, position or {}, texts, top)
            for token_id, position in zip(token_ids, positions, strict=False)
        ]
    )


def _token_logprob(
    token_id: int, position: Mapping[int, Logprob], texts: TokenTexts, top: int
) -> TokenLogprob:
    own = position.get(token_id)
    best = sorted(position.items(), key=lambda entry: -entry[1].logprob)[:top]
    own_bytes, *best_bytes = texts.token_bytes([token_id, *(other_id for other_id, _ in best)])
    alternatives = [
        TopLogprob(texts(other_id, logprob), _value(logprob), list(data))
        for (other_id, logprob), data in zip(best, best_bytes, strict=True)
    ]
    return TokenLogprob(
        texts(token_id, own), _value(own) if own else LOWEST, list(own_bytes), alternatives
    )


def prompt_logprobs(
    positions: Sequence[Mapping[int, Logprob] | None], texts: TokenTexts
) -> PromptLogprobs:
    """Format log-probabilities of a prompt, by token id; the first position has none."""
    return [
        {str(i): PromptLogprob(_value(lp), lp.rank, texts(i, lp)) for i, lp in position.items()}
        if position
        else None
        for position in positions
    ]
