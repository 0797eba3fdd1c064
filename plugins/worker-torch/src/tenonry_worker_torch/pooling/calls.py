"""The call set `pooling`: vectors and scores of prompts and texts, as requests of `generate`. Front end."""

from __future__ import annotations

import asyncio
from typing import Any

from tenonry.interfaces.call_set import CallSet, Engine, FrontEnd, FrontEndHalf
from tenonry.outputs import PoolingOutput
from tenonry.sampling_params import PoolingParams, SamplingParams
from tenonry_worker_torch.pooling.texts import (
    Texts,
    cosine,
    matched,
    pair,
    pooled,
    sampling,
    scores_by,
)


class PoolingCalls(CallSet):
    """Vectors and scores instead of tokens."""

    name = "pooling"

    def front_end_half(self, front_end: FrontEnd) -> Pooling:
        return Pooling(front_end.llm)

    def blocking_half(self, llm: Any, engine: Engine) -> BlockingPooling:
        return BlockingPooling(llm)


class Pooling(FrontEndHalf):
    """Vectors and scores of prompts, one coroutine each; and the steps from texts to scores, for routes."""

    matched = staticmethod(matched)
    scores_by = staticmethod(scores_by)
    cosine = staticmethod(cosine)

    def __init__(self, llm: Any) -> None:
        self._llm = llm

    async def encode(
        self, prompt: Any, pooling_params: PoolingParams, request_id: str, **fields: Any
    ) -> PoolingOutput:
        """Return the model's output for a prompt; prompt, `fields` and errors as in `generate`."""
        return await self._pooled(prompt, sampling(pooling_params), request_id, **fields)

    async def score(
        self,
        text_1: str,
        text_2: str,
        request_id: str,
        *,
        truncate_prompt_tokens: int | None = None,
        **fields: Any,
    ) -> PoolingOutput:
        """Return the score of a pair of texts by a cross-encoder's head, `data` f32[1].

        `truncate_prompt_tokens`: maximum tokens of both as one prompt, cut at the longer text's end; -1: all that fit.
        """
        prompt, params = await asyncio.to_thread(
            pair, self._llm.io_processor, text_1, text_2, truncate_prompt_tokens
        )
        return await self._pooled(prompt, params, request_id, **fields)

    async def _pooled(
        self, prompt: Any, params: SamplingParams, request_id: str, **fields: Any
    ) -> PoolingOutput:
        last = None
        async for output in self._llm.generate(prompt, params, request_id, **fields):
            last = output
        return pooled(last)


class BlockingPooling:
    """The same for many prompts together. A failed request raises EngineGenerateError, after the others ended."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm

    def encode(
        self, prompts: Any, pooling_params: PoolingParams, **options: Any
    ) -> list[PoolingOutput]:
        """Return the model's outputs for prompts, one each, in order; `options` as in `generate`."""
        return [
            pooled(each)
            for each in self._llm.generate(prompts, sampling(pooling_params), **options)
        ]

    def embed(
        self,
        prompts: Any,
        *,
        normalize: bool | None = None,
        dimensions: int | None = None,
        **options: Any,
    ) -> list[PoolingOutput]:
        """Return the vectors of prompts."""
        params = PoolingParams(normalize=normalize, dimensions=dimensions)
        return self.encode(prompts, params, **options)

    def classify(self, prompts: Any, **options: Any) -> list[PoolingOutput]:
        """Return scores of each class."""
        return self.encode(prompts, PoolingParams(task="classify"), **options)

    def score(
        self,
        text_1: Texts,
        text_2: Texts,
        *,
        truncate_prompt_tokens: int | None = None,
        **options: Any,
    ) -> list[float]:
        """Return scores of pairs of texts: one first text with each second one, or two lists pair by pair.

        Computed by the head of a cross-encoder, or with an embedding model as the cosine of two vectors.
        `truncate_prompt_tokens`: of a pair as in `AsyncLLM.score`, of a text for its vector as in its prompt.
        """
        pairs = matched(text_1, text_2)
        if scores_by(self._llm.info.tasks) == "score":
            joined = [pair(self._llm.io_processor, *both, truncate_prompt_tokens) for both in pairs]
            prompts, params = map(list, zip(*joined, strict=True))
            outputs = self._llm.generate(prompts, params, **options)
            return [float(pooled(output).data[0]) for output in outputs]
        texts = list(dict.fromkeys(text for both in pairs for text in both))
        if truncate_prompt_tokens is not None:
            options["tokenization_kwargs"] = {"truncate_prompt_tokens": truncate_prompt_tokens}
        found = self.encode(texts, PoolingParams(), **options)
        vectors = {text: each.data for text, each in zip(texts, found, strict=True)}
        return [cosine(vectors[first], vectors[second]) for first, second in pairs]
