"""Conversion of prompts for the engine: chats rendered, long prompts truncated. Front end, event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tenonry.errors import RequestError
from tenonry.interfaces.io_processor import IOProcessor, read_prompt
from tenonry.sampling_params import SamplingParams
from tenonry_openai_server.errors import bad_request
from tenonry_openai_server.helper_thread import INLINE_CHARS, off_loop
from tenonry_openai_server.protocol.messages import Message
from tenonry_openai_server.protocol.requests import ChatPrompt
from tenonry_openai_server.protocol.sampling import SamplingBody
from tenonry_openai_server.routes.named_calls import NamedCalls

if TYPE_CHECKING:
    from tenonry.client.async_llm import AsyncLLM

MESSAGE_CHARS = 64  # characters of text with the template time of one message


def need_text(engine: AsyncLLM, what: str, param: str) -> IOProcessor:
    """The IO processor, by `NamedCalls`. Raises APIError 400 where the server runs without one."""
    if engine.io_processor is None:
        raise bad_request(
            f"{what} needs a tokenizer, and this server runs without one; send token ids", param
        )
    return NamedCalls.of(engine.io_processor)


async def render(
    engine: AsyncLLM, messages: list[Message], options: ChatPrompt, *, special: bool
) -> Any:
    """The prompt that a chat's messages make. Raises RequestError where the model has no chat template.

    `special`: add special tokens to those that the template writes.
    """
    io_processor = need_text(engine, "a chat", "messages")
    chat = [message.for_template() for message in messages]
    size = sum(MESSAGE_CHARS + message.num_chars for message in messages)
    if any(message.has_images for message in messages):
        size = INLINE_CHARS + 1  # they are read and decoded there
    tools = [tool.for_template() for tool in options.shown_tools]
    with_tools: dict[str, Any] = {"tools": tools} if tools else {}
    values = options.template_values
    is_continued = bool(options.continue_final_message) or messages[-1].begins_answer
    opens_answer = options.add_generation_prompt
    prompt = await off_loop(
        size,
        lambda: io_processor.render_chat(
            chat,
            add_generation_prompt=not is_continued if opens_answer is None else opens_answer,
            continue_final_message=is_continued,
            chat_template_kwargs=values,
            **with_tools,
        ),
    )
    if special and isinstance(prompt, dict) and "prompt" in prompt:
        return {**prompt, "add_special_tokens": True}
    return prompt


async def truncated(
    engine: AsyncLLM, prompt: Any, body: SamplingBody, max_tokens: int | None
) -> Any:
    """Truncate the prompt to its last `truncate_prompt_tokens` tokens; -1 keeps as many as fit with the answer."""
    keep = body.truncate_prompt_tokens
    if keep is None:
        return prompt
    max_model_len = engine.info.max_model_len
    if keep < 0:
        keep = max(max_model_len - (max_tokens or 1), 0)
    if not 1 <= keep <= max_model_len:
        raise RequestError(
            f"truncate_prompt_tokens={keep} is out of bounds: it must be at least 1 and at most {max_model_len}",
            "truncate_prompt_tokens",
        )
    if isinstance(prompt, list):
        return prompt[-keep:]
    if isinstance(prompt, dict) and prompt.get("images"):
        raise RequestError(
            "truncate_prompt_tokens: a prompt with images cannot be cut; leave it out, or shorten the chat",
            "truncate_prompt_tokens",
        )
    io_processor = need_text(engine, "truncate_prompt_tokens", "truncate_prompt_tokens")
    special = body.adds_special_tokens
    processed = await off_loop(
        len(prompt) if isinstance(prompt, str) else INLINE_CHARS + 1,
        lambda: io_processor.process_prompt(
            read_prompt(prompt), SamplingParams(), add_special_tokens=special
        ),
    )
    return processed.token_ids[-keep:].tolist()
