"""A front end whose engines go in pairs: one computes a long prompt, another decodes. Front end.

The request itself runs where it is decoded, from its first token on. Before it is sent, its prompt runs on a prefill
engine, as a request of one token, whose end names where the K/V can be fetched. So what callers see comes from one
engine, and a prefill engine that fails costs time only.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, NamedTuple, cast

import msgspec

from tenonry.client.async_llm import AsyncLLM
from tenonry.client.stream import Stream
from tenonry.config import EngineConfig
from tenonry.errors import (
    EngineDeadError,
    EngineGenerateError,
    QueueFullError,
    RequestError,
    TenonryError,
)
from tenonry.messages import EngineCoreRequest
from tenonry.outputs import RequestOutput
from tenonry.sampling_params import SamplingParams

logger = logging.getLogger("tenonry.scale_out")
Outputs = AsyncGenerator[RequestOutput, None]
ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)
SUFFIX = "-prefill"  # of the prompt's request id


class PrefillPolicy(NamedTuple):
    """The first `engines` engines compute prompts of `least_tokens` tokens and more."""

    engines: int
    least_tokens: int


class PairedLLM(AsyncLLM):
    """An `AsyncLLM` with prefill engines; needs the KV connector `peer` and the load balancer `prefill-decode`.

    Requests for vectors, with images, with log-probabilities of the prompt, with a rank or with their own
    `kv_transfer_params` run normally.
    """

    def __init__(self, config: EngineConfig, policy: PrefillPolicy, **options: Any) -> None:
        super().__init__(config, **options)
        self._policy = policy
        self._prefilled: dict[
            str, int
        ] = {}  # request id → prompt tokens that the prefill engine had cached
        self._aborted: set[str] = set()  # while their prompts are computed

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **fields: Any
    ) -> AsyncIterator[RequestOutput]:
        """As `AsyncLLM.generate`; tokens that came from a prefill engine do not count as cached."""
        outputs = super().generate(prompt, sampling_params, request_id, **fields)
        try:
            async with contextlib.aclosing(cast("Outputs", outputs)):
                async for output in outputs:
                    cached = self._prefilled.get(request_id)
                    if cached is not None:
                        output.num_cached_tokens = cached
                    yield output
        finally:
            self._prefilled.pop(request_id, None)

    async def add_request(
        self, prompt: Any, params: SamplingParams, request_id: str, **fields: Any
    ) -> Stream:
        """As `AsyncLLM.add_request`, after the prompt was computed on a prefill engine, if that is worth it."""
        found = await self._worth_it(prompt, params, request_id, fields)
        if found is None:
            return await super().add_request(prompt, params, request_id, **fields)
        text, request = found
        transfer = await self._prefill(request, params.n)
        request = msgspec.structs.replace(request, kv_transfer_params=transfer)
        stream = await super().add_request(request, params, request_id)
        stream.prompt = text
        if request_id in self._aborted:  # while its prompt was computed
            self._aborted.discard(request_id)
            await super().abort(request_id)
        return stream

    async def abort(self, request_id: Any) -> None:
        """As `AsyncLLM.abort`, also while the prompt is computed."""
        request_ids = [request_id] if isinstance(request_id, str) else list(request_id)
        early = [name for name in request_ids if self.output_processor.get(name + SUFFIX)]
        self._aborted.update(early)
        await super().abort([*request_ids, *(name + SUFFIX for name in early)])

    async def _worth_it(
        self, prompt: Any, params: SamplingParams, request_id: str, fields: dict[str, Any]
    ) -> tuple[str | None, EngineCoreRequest] | None:
        """(text, request) of a prompt for a prefill engine; None for all others, and for requests that are invalid."""
        is_own = fields.get("kv_transfer_params") or fields.get("data_parallel_rank") is not None
        links = self.engine_core.engines.items()
        if is_own or not any(i < self._policy.engines and not link.dead for i, link in links):
            return None
        try:
            self.input_processor.check_call(params, request_id)
            if params.pooling is not None or params.prompt_logprobs is not None:
                return None
            num_chars = self.input_processor.num_text_chars(prompt, params)
            processed, requests = await self.input_processor.prepare(
                num_chars, prompt, params, request_id, **fields
            )
        except (TypeError, TenonryError):  # raised again where such requests are refused
            return None
        request = requests[0]
        is_text = not request.features and request.media is None
        if len(request.prompt_token_ids) < self._policy.least_tokens or not is_text:
            return None
        return processed.text, request

    async def _prefill(self, request: EngineCoreRequest, count: int) -> dict[str, Any] | None:
        """Run the prompt on a prefill engine; return parameters for `count` fetches of its K/V, None on failure."""
        name = request.request_id + SUFFIX
        prompt = msgspec.structs.replace(
            request, stop_token_ids=(), bad_words=(), output_token_ids=[]
        )
        wanted = {"do_remote_decode": True, "num_readers": count}
        output: RequestOutput | None = None
        try:
            outputs = super().generate(prompt, ONE_TOKEN, name, kv_transfer_params=wanted)
            async with contextlib.aclosing(cast("Outputs", outputs)):
                async for output in outputs:  # noqa: B007 - the last one
                    pass
        except (EngineDeadError, EngineGenerateError, QueueFullError, RequestError) as error:
            logger.debug(
                "request %s: its prompt was not computed on a prefill engine: %s", name, error
            )
            return None
        if output is None or not output.kv_transfer_params:
            return None
        self._prefilled[request.request_id] = output.num_cached_tokens
        return output.kv_transfer_params
