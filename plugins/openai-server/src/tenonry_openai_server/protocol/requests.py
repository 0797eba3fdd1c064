"""Request bodies of the routes with a prompt. Front end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, Field, SkipValidation, WithJsonSchema, model_validator

from tenonry.sampling_params import MAX_LOGPROBS, MAX_N, MAX_TOKENS
from tenonry_openai_server.protocol.large_fields import (
    IDS_SCHEMA,
    PROMPTS_SCHEMA,
    Prompt,
    decode_ids,
    decode_prompts,
    decode_text,
)
from tenonry_openai_server.protocol.messages import Messages, decode_messages
from tenonry_openai_server.protocol.parse import Body
from tenonry_openai_server.protocol.sampling import SamplingBody, TemplateValues, at_most
from tenonry_openai_server.protocol.tools import (
    MAX_TOOLS,
    AllowedChoice,
    NamedChoice,
    ReasoningEffort,
    ToolChoice,
    ToolFunction,
    Tools,
    check_choice,
    check_names,
)

DEFAULT_MAX_TOKENS = 16
MAX_COMPLETIONS = 4096  # prompts × n of one request

Prompts = Annotated[
    list[Prompt], SkipValidation, WithJsonSchema(PROMPTS_SCHEMA)
]  # decoded and checked already
Ids = Annotated[list[int], SkipValidation, WithJsonSchema(IDS_SCHEMA)]
Text = Annotated[str, SkipValidation]


class CompletionRequest(SamplingBody):
    """Body of POST /v1/completions."""

    decoders: ClassVar = {"prompt": decode_prompts}

    prompt: Prompts
    max_tokens: int | None = Field(
        None, ge=0, le=MAX_TOKENS, description="16 by default; 0 only with echo."
    )
    max_completion_tokens: int | None = Field(
        None, ge=1, le=MAX_TOKENS, description="Same, under the name used in chats."
    )
    best_of: int | None = Field(None, ge=1, le=MAX_N)
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

    @property
    def num_completions(self) -> int:
        return len(self.prompt) * (self.n or 1)

    @property
    def max_new_tokens(self) -> int:
        """Maximum new tokens; at least one, since the engine always generates one."""
        for given in (self.max_completion_tokens, self.max_tokens):
            if given is not None:
                return max(given, 1)
        return DEFAULT_MAX_TOKENS

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def num_prompt_logprobs(self) -> int | None:
        """Number of prompt log-probabilities; with `echo`, log-probabilities cover the prompt."""
        if self.prompt_logprobs is None and self.echo:
            return self.logprobs
        return self.prompt_logprobs

    @property
    def adds_special_tokens(self) -> bool:
        return self.add_special_tokens is not False

    @property
    def echoes_prompt(self) -> bool:
        return bool(self.echo)

    @property
    def is_score_only(self) -> bool:
        return self.max_tokens == 0

    @model_validator(mode="after")
    def _check(self) -> CompletionRequest:
        n = self.n or 1
        if self.best_of is not None and self.best_of != n:
            raise ValueError(
                f"best_of={self.best_of} differs from n={n}; choosing the best of more is not supported"
            )
        if self.num_completions > MAX_COMPLETIONS:
            raise ValueError(
                f"{len(self.prompt)} prompts × n={n} is above {MAX_COMPLETIONS} completions"
            )
        if self.max_tokens == 0 and (not self.echo or self.max_completion_tokens):
            raise ValueError("max_tokens=0 computes nothing; give at least 1, or echo the prompt")
        return self


class ChatPrompt(BaseModel):
    """Fields that control the conversion of messages to a prompt."""

    tools: Annotated[Tools | None, at_most(MAX_TOOLS)] = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateValues = Field(
        None, description="Names for the chat template, such as enable_thinking."
    )

    @property
    def functions(self) -> list[ToolFunction]:
        """The tools that a model can call here."""
        return [tool.served for tool in self.tools or () if tool.served is not None]

    @property
    def shown_tools(self) -> list[ToolFunction]:
        """The tools that the prompt shows to the model."""
        return self.functions

    def unused_parts(self) -> Iterator[tuple[str, str]]:
        """Tools that are no functions."""
        for place, tool in enumerate(self.tools or ()):
            if tool.served is None:
                yield f"tools[{place}] ({tool.type})", "only functions are offered to the model"

    @property
    def template_values(self) -> dict[str, Any]:
        """Additional variables of the chat template."""
        return dict(self.chat_template_kwargs or {})

    @model_validator(mode="after")
    def _check_prompt(self) -> ChatPrompt:
        check_names(self.functions)
        if self.continue_final_message and self.add_generation_prompt:
            raise ValueError("continue_final_message and add_generation_prompt exclude each other")
        return self


class ChatRequest(ChatPrompt, SamplingBody):
    """Body of POST /v1/chat/completions."""

    decoders: ClassVar = {"messages": decode_messages}

    messages: Messages
    max_tokens: int | None = Field(
        None, ge=1, le=MAX_TOKENS, description="The rest of the context by default."
    )
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: ReasoningEffort | None = Field(
        None,
        description="For chat templates that read it; none also sets enable_thinking to false.",
    )
    include_reasoning: bool | None = None

    @property
    def shown_tools(self) -> list[ToolFunction]:
        """Tools in the prompt: none if the request forbids calls; those of `allowed_tools` if set."""
        if self.tool_choice == "none":
            return []
        tools = super().shown_tools
        if isinstance(self.tool_choice, AllowedChoice):
            return [tool for tool in tools if tool.name in self.tool_choice.names]
        return tools

    def demands(self, name: str) -> bool:
        """Return True if the answer must be a call, and may be one of this function."""
        choice = self.tool_choice
        if isinstance(choice, AllowedChoice):
            return choice.allowed_tools.mode == "required" and name in choice.names
        return choice == "required" or (
            isinstance(choice, NamedChoice) and choice.function.name == name
        )

    @property
    def template_values(self) -> dict[str, Any]:
        values = super().template_values
        if self.reasoning_effort is not None:
            values.setdefault("reasoning_effort", self.reasoning_effort)
            if self.reasoning_effort == "none":
                values.setdefault("enable_thinking", False)
        return values

    @property
    def max_new_tokens(self) -> int | None:
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def adds_special_tokens(self) -> bool:
        """True if the tokenizer adds special tokens; by default the chat template writes them."""
        return bool(self.add_special_tokens)

    @model_validator(mode="after")
    def _check(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        check_choice(self.tool_choice, self.functions)
        return self


class TokenizeRequest(ChatPrompt, Body):
    """Body of POST /tokenize: a text, or messages."""

    decoders: ClassVar = {"messages": decode_messages, "prompt": decode_text}

    prompt: Text | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class DetokenizeRequest(Body):
    """Body of POST /detokenize."""

    decoders: ClassVar = {"tokens": decode_ids}

    tokens: Ids
