"""Contents of an answer besides text, for both forms of an answer: streamed and whole. Front end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tenonry_openai_server.errors import bad_request
from tenonry_openai_server.protocol.tokens import TokenTexts

if TYPE_CHECKING:
    from tenonry_openai_server.protocol.sampling import SamplingBody


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseOptions:
    """Output options of the client.

    `num_logprobs`: alternatives per token, None for no log-probabilities. `prompt_logprobs`: include those of the
    prompt. `echo`: the prompt precedes the answer. `score_only`: only the prompt is shown; the engine always generates
    at least one token, which is neither shown nor counted.
    """

    num_logprobs: int | None = None
    prompt_logprobs: bool = False
    token_ids: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    echo: bool = False
    score_only: bool = False

    @classmethod
    def of(cls, body: SamplingBody) -> ResponseOptions:
        """The options of a body. Raises APIError 400 for options that do not fit together."""
        stream_options = body.stream_options
        if stream_options is not None and not body.stream:
            raise bad_request("stream_options needs stream: true", "stream_options")
        include_usage = bool(stream_options and stream_options.include_usage)
        continuous = bool(stream_options and stream_options.continuous_usage_stats)
        return cls(
            num_logprobs=body.num_logprobs,
            prompt_logprobs=body.prompt_logprobs is not None,
            token_ids=bool(body.return_token_ids),
            include_usage=include_usage,
            continuous_usage=include_usage and continuous,
            echo=body.echoes_prompt,
            score_only=body.is_score_only,
        )

    @property
    def are_plain(self) -> bool:
        """Nothing but text, once a completion has begun."""
        return self.num_logprobs is None and not self.token_ids and not self.continuous_usage

    @property
    def include_logprobs(self) -> bool:
        """Lists that may be long, in any chunk."""
        return self.num_logprobs is not None or self.prompt_logprobs


@dataclass(frozen=True, slots=True)
class ResponseContext:
    """Constant data of one response: its public id, its time in seconds, the served name, and the display of tokens."""

    id: str
    created: int
    model: str
    options: ResponseOptions
    texts: TokenTexts
