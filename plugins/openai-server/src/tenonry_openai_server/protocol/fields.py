"""Treatment of fields outside of our request models. Data, and the error for an unknown name.

| a field that | is |
|---|---|
| is null, or holds a value that asks for nothing | as good as absent |
| cannot change an answer by its definition (`HARMLESS`) | accepted |
| is known to change an answer here or in vLLM, and is not served (`UNSUPPORTED`) | 400 |
| is one or two letters away from a field of the request | 400 with that field |
| is anything else | ignored and reported (`ignored.py`), or 400 with `--unknown-fields refuse` |

The names of `UNSUPPORTED` follow vLLM's request models (chat, completions, pooling) and `SamplingParams`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tenonry_openai_server.errors import APIError, bad_request

# Caching hints, which objects in a body may also hold; prefixes are cached without them.
CACHE_HINTS = frozenset({"cache_control", "prompt_cache_breakpoint"})
# Accounting, identity and hints about caching or speed.
HARMLESS = CACHE_HINTS | {
    "user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "prompt_cache_options", "prediction", "request_id",
}  # fmt: skip
_STRUCTURED = "put it into structured_outputs, as json, json_object, regex, choice or grammar"
_TOOLS = "only /v1/chat/completions has tools"
_FUNCTIONS = "tools has taken its place"
_MAX_TOKENS = "it is called max_tokens here"
_SYSTEM = "put it into the messages, with the role system"
_NOT_HERE = "this server does not have it"
_IMAGES = "the operator's settings and the model's files say how images are processed"
_RESPONSES = "only /v1/responses has it"
UNSUPPORTED = {
    # fields of other routes
    "suffix": "text cannot be inserted before a suffix",
    "prompt": "only /v1/completions has it; a chat has messages",
    "messages": "only chats have messages; send a prompt",
    "input": f"{_RESPONSES}; a chat has messages, a completion a prompt",
    "instructions": f"{_RESPONSES}; a chat has messages with the role system",
    "max_output_tokens": _MAX_TOKENS,
    "stop_sequences": "it is called stop here",
    "system": _SYSTEM,
    "top_logprobs": "only /v1/chat/completions has it; give logprobs a number",
    "tools": _TOOLS,
    "functions": _FUNCTIONS,
    "tool_choice": _TOOLS,
    "function_call": _FUNCTIONS,
    "best_of": "only /v1/completions has it",
    "echo": "only /v1/completions repeats the prompt",
    # forms of an answer
    "structured_output": _STRUCTURED,
    "structural_tag": "structural tags are not available in this server",
    "json_schema": _STRUCTURED,
    "regex": _STRUCTURED,
    "grammar": _STRUCTURED,
    "ebnf": _STRUCTURED,
    "guided_decoding_backend": "the operator chooses it with --grammar-backend",
    "guided_whitespace_pattern": "JSON has a space or a line break where it may have white space",
    # sampling
    "use_beam_search": "beam search is not available in this server",
    "thinking_token_budget": "reasoning has no bound of its own; max_tokens bounds all of an answer",
    "repetition_detection": "repetition is not detected; repetition_penalty and frequency_penalty avoid it",
    "watermarking": "answers have no watermark",
    "logits_processors": "the operator chooses them with --worker-option logits_processors=[NAME]",
    "vllm_xargs": "values for plugins are called extra_args here",
    "trace_decode_token_ids": _NOT_HERE,
    "lora_request": "name the adapter as the model, if the operator serves one",
    # contents of an answer
    "detokenize": "answers bring text and, with return_token_ids, ids",
    "logprob_token_ids": "log-probabilities are those of the most likely tokens",
    "prompt_logprob_token_ids": "log-probabilities are those of the most likely tokens",
    "prompt_logprob_start": "log-probabilities of a prompt are those of all its tokens",
    "return_prompt_text": "return_token_ids shows the ids of the prompt, and /detokenize their text",
    "audio": "this server answers with text only",
    "modalities": "this server answers with text only",
    # prompts
    "documents": "put texts into the messages",
    "prompt_embeds": "prompts are text or token ids, not embeddings",
    "truncation_side": "truncate_prompt_tokens keeps the end of a prompt",
    "mm_processor_kwargs": _IMAGES,
    "media_io_kwargs": _IMAGES,
    "ec_transfer_params": "images are encoded where the prompt is computed",
    "web_search_options": "this server does not search the web",
    "chat_template": "a request cannot bring a chat template; the operator sets it with --chat-template",
}
NOTHING: tuple[Any, ...] = (None, False, "", [], {})
# Values without effect of a field; for one of `UNSUPPORTED` these are, by default, the values in `NOTHING`.
HARMLESS_VALUES: dict[str, tuple[Any, ...]] = {
    "tool_choice": (*NOTHING, "none", "auto"),
    "function_call": (*NOTHING, "none"),
    "modalities": (*NOTHING, ["text"]),
    "best_of": (None, 1),
    "detokenize": (None, True),
    "truncation_side": (None, "left"),
    "n": (None, 1),
    "is_error": (None, False),
    "detail": (None, "auto"),
    "thinking_token_budget": (None, -1),
    "prompt_logprob_start": (None, 0),
    "top_logprobs": (None, 0),
    "include_obfuscation": (None, False),
    "spaces_between_special_tokens": (None, True),
    "length_penalty": (None, 1),
    "early_stopping": (None, False),
    "parallel_tool_calls": (None, True),
    "annotations": (None, []),
    "web_search_options": (None,),
}
# Fields of other servers that are not misspelt fields of this one, despite similar names.
ELSEWHERE = frozenset({"mode", "models", "speed", "top_a", "top_n", "typ_p"})
MAX_NAME_CHARS = 64


def nearest_field(name: str, known: Iterable[str]) -> str | None:
    """The known field that `name` seems to misspell, or None: one letter off, or two of a name of eight or more.

    Upper case and hyphens are no difference. Names of up to three letters are near to too many others.
    """
    if len(name) > MAX_NAME_CHARS:
        return None
    written = name.lower().replace("-", "_")
    near = [
        (distance, own)
        for own in known
        if (distance := _distance(written, own, _tolerance(own))) is not None
    ]
    return min(near, default=(0, None))[1]


def _tolerance(own: str) -> int:
    return 0 if len(own) <= 3 else 1 if len(own) < 8 else 2


def _distance(first: str, second: str, most: int) -> int | None:
    """Edit distance of two texts, counting a swap of neighbours as one edit; None for more than `most`.

    This is the optimal string alignment distance.
    """
    if abs(len(first) - len(second)) > most:
        return None
    before: list[int] = []
    row = list(range(len(second) + 1))
    for i, letter in enumerate(first, 1):
        above, row = row, [i]
        for j, other in enumerate(second, 1):
            cost = min(above[j] + 1, row[-1] + 1, above[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == second[j - 2] and first[i - 2] == other:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        before = above
    return row[-1] if row[-1] <= most else None


def unknown_field(name: str, nearest: str | None, under: str = "") -> APIError:
    """Return 400 for a field that this request, or its field `under`, lacks, with the nearest valid one."""
    shown = name if len(name) <= MAX_NAME_CHARS else name[:MAX_NAME_CHARS] + "…"
    hint = f"did you mean {nearest}?" if nearest else "/openapi.json lists the fields; leave it out"
    param = f"{under}.{shown}" if under else shown
    return bad_request(
        f"{param}: this request has no such field; {hint}", param, "unknown_parameter"
    )
