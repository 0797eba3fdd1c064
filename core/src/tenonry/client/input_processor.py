"""Converts callers' prompts and parameters to engine requests. Front end.

One caller request becomes `n` engine requests with their own handles; engines do not use the caller's id.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import itertools
import random
import reprlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from tenonry.client.io_calls import expect, io_call
from tenonry.config import EngineConfig, nearest
from tenonry.engine.request_checks import check_request
from tenonry.errors import RequestError
from tenonry.info import EngineInfo, ModelInfo
from tenonry.interfaces.io_processor import (
    IOProcessor,
    ProcessedPrompt,
    Prompt,
    TextPrompt,
    TokenPrompt,
    read_prompt,
)
from tenonry.interfaces.request_check import RequestLimits
from tenonry.messages import EngineCoreRequest, make_handle
from tenonry.plugin.plan import PluginPlan
from tenonry.sampling_params import SamplingParams, check_type

Result = TypeVar("Result")
LONG_TEXT_CHARS = 2048  # longer texts are tokenised off the event loop
REQUEST_FIELDS = {
    info.name: info.type
    for info in msgspec.structs.fields(EngineCoreRequest)
    if info.name not in {"handle", "request_id", "prompt_token_ids", "sampling_params"}
}
CALLER_FIELDS = {
    **REQUEST_FIELDS,
    "add_special_tokens": bool,
    "tokenization_kwargs": dict[str, Any],
    "prompt_text": str,
}  # caller fields and their types


class InputProcessor:
    """Makes handles, seeds and stop ids; checks requests against engine limits. `index`: that of the front end."""

    def __init__(
        self,
        config: EngineConfig,
        plan: PluginPlan,
        model: ModelInfo,
        io: IOProcessor | None,
        info: EngineInfo,
        index: int = 0,
    ) -> None:
        self._model = model
        self._io = io
        self._limits = RequestLimits(
            info.max_model_len,
            model.vocab_size,
            config,
            tasks=info.tasks,
            checks=plan.load_request_checks(),
        )
        base = make_handle(index, 0)
        # Long texts are processed in threads, and `next` is atomic.
        self._handles = itertools.count(base + 1)
        self._seeds = random.Random(config.seed + base)  # noqa: S311 - no secrets

    @staticmethod
    def check_call(params: object, request_id: object) -> None:
        """Raise RequestError for invalid required arguments of a request."""
        for field, value, kind in (
            ("sampling_params", params, SamplingParams),
            ("request_id", request_id, str),
        ):
            if not isinstance(value, kind):
                raise RequestError(
                    f"{field}={reprlib.repr(value)} must be a {kind.__name__}", field
                )

    @staticmethod
    def num_text_chars(prompt: object, params: SamplingParams) -> int:
        """Number of characters to tokenise, of prompt and bad words."""
        text = ""
        match prompt:
            case {"prompt_token_ids": ids} if ids is not None:
                pass
            case str(found) | TextPrompt(text=str(found)) | {"prompt": str(found)}:
                text = found
        return len(text) + sum(map(len, params.bad_words or ()))

    async def prepare(
        self, num_chars: int, prompt: object, params: SamplingParams, request_id: str, **fields: Any
    ) -> tuple[ProcessedPrompt, list[EngineCoreRequest]]:
        """As `process`, in a thread if that is slow. `num_chars`: see `num_text_chars`."""
        work = functools.partial(self.process, prompt, params, request_id, **fields)
        return await prepared(work, params, num_chars)

    def process(
        self, prompt: object, params: SamplingParams, request_id: str, **fields: Any
    ) -> tuple[ProcessedPrompt, list[EngineCoreRequest]]:
        """The processed prompt, and one engine request per completion.

        `fields` are `CALLER_FIELDS`; None omits one. `prompt` may be an EngineCoreRequest: its fields are kept, except
        the handle and the fields passed here; `prompt_text` is its text, for outputs. `tokenization_kwargs` become
        fields of the prompt, as the IO processor documents them. Raises RequestError, or TypeError for an unknown
        field.
        """
        given = {name: value for name, value in fields.items() if value is not None}
        if isinstance(prompt, EngineCoreRequest):
            given = {name: getattr(prompt, name) for name in REQUEST_FIELDS} | given
        _check_fields(given)
        special = given.pop("add_special_tokens", True)
        text = given.pop("prompt_text", None)
        read = _read(prompt, given.pop("tokenization_kwargs", {}), special, text)
        if (salt := read.options.pop("cache_salt", None)) is not None:
            check_type("cache_salt", salt, str)
            given.setdefault("cache_salt", salt)
        processed = self._process_prompt(read, params, request_id, special)
        made = {
            "stop_token_ids": self._stop_token_ids(params),
            "bad_words": processed.bad_words,
            "features": processed.features,
            "media": processed.media,
        }
        given |= {name: given.get(name) or value for name, value in made.items()}
        first = self._seeded(params, 0)
        request = EngineCoreRequest(
            handle=0,
            request_id=request_id,
            prompt_token_ids=processed.token_ids,
            sampling_params=first,
            **given,
        )
        check_request(request, self._limits)
        completions = [
            msgspec.structs.replace(
                request, handle=next(self._handles), sampling_params=self._seeded(first, index)
            )
            for index in range(params.n)
        ]
        return processed, completions

    def _process_prompt(
        self, prompt: Prompt, params: SamplingParams, request_id: str, add_special_tokens: bool
    ) -> ProcessedPrompt:
        needs_io = prompt.options or params.bad_words or params.structured_output
        if isinstance(prompt, TokenPrompt) and not needs_io:
            return ProcessedPrompt(token_ids=prompt.token_ids, text=prompt.text)
        if self._io is None:
            if isinstance(prompt, TokenPrompt):
                raise RequestError(
                    "bad_words, structured_output and options of the prompt need a tokenizer, but none is loaded",
                    "bad_words" if params.bad_words else "structured_output",
                )
            raise RequestError(
                "no tokenizer is loaded; give token ids: {'prompt_token_ids': [...]}", "prompt"
            )
        with io_call(self._io, request_id, "process_prompt"):
            return expect(  # type: ignore[no-any-return]
                self._io.process_prompt(prompt, params, add_special_tokens=add_special_tokens),
                ProcessedPrompt,
            )

    def _stop_token_ids(self, params: SamplingParams) -> tuple[int, ...]:
        own = tuple(params.stop_token_ids or ())
        if params.ignore_eos:
            return own
        return tuple(dict.fromkeys(self._model.eos_token_ids + own))

    def _seeded(self, params: SamplingParams, index: int) -> SamplingParams:
        """Set the seed of an unseeded request, so that sampling never depends on the engine."""
        if params.is_greedy:
            return params
        if params.seed is None:
            seed = self._seeds.getrandbits(63)
        else:
            # A signed 64-bit integer; after the largest it wraps around.
            seed = (params.seed + index + 2**63) % 2**64 - 2**63
        return msgspec.structs.replace(params, seed=seed)


async def prepared(work: Callable[[], Result], params: SamplingParams, num_chars: int) -> Result:
    """Return the result of `work`, which tokenises `num_chars`: inline if quick, else from a thread.

    A grammar check may take seconds and has its own thread, so that long texts do not queue behind it.
    """
    if params.structured_output is None:
        return work() if num_chars <= LONG_TEXT_CHARS else await asyncio.to_thread(work)
    thread = ThreadPoolExecutor(1, thread_name_prefix="grammar-check")
    context = contextvars.copy_context()
    try:
        return await asyncio.get_running_loop().run_in_executor(thread, context.run, work)
    finally:
        thread.shutdown(wait=False)


def _check_fields(fields: Mapping[str, Any]) -> None:
    """Raise TypeError for a field outside `CALLER_FIELDS`, RequestError for a value of another type."""
    for name, value in fields.items():
        if name not in CALLER_FIELDS:
            hint = nearest(name, CALLER_FIELDS) or f"; it takes {', '.join(CALLER_FIELDS)}"
            raise TypeError(f"'{name}' is not a request keyword{hint}")
        check_type(name, value, CALLER_FIELDS[name])


def _read(prompt: object, options: Mapping[str, Any], special: bool, text: str | None) -> Prompt:
    """Return the prompt with its options. Raises RequestError for a field that does not fit this form of prompt."""
    if isinstance(prompt, EngineCoreRequest):
        if options or not special:
            name = "tokenization_kwargs" if options else "add_special_tokens"
            raise RequestError(
                f"{name}: the prompt is an EngineCoreRequest, which holds tokens; leave it out",
                name,
            )
        return read_prompt({"prompt": text, "prompt_token_ids": prompt.prompt_token_ids})
    if text is not None:
        raise RequestError(
            "prompt_text belongs to an EngineCoreRequest; of other prompts give {'prompt': text, "
            "'prompt_token_ids': ids}",
            "prompt_text",
        )
    read = read_prompt(prompt)
    return msgspec.structs.replace(read, options={**read.options, **options})
