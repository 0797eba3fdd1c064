"""Requests all vectors and scores of one HTTP request from the engine. Front end, event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from tenonry.outputs import PoolingOutput
from tenonry.sampling_params import PoolingParams

AT_ONCE = 128  # of one HTTP request, so that one with thousands of inputs leaves room in the queue
Item = TypeVar("Item")


class Pool:
    """The pooling requests of one HTTP request. `num_tokens`: of all prompts that were answered."""

    def __init__(
        self, engine: Any, request_id: str, fields: Mapping[str, Any], truncate: int | None = None
    ) -> None:
        """`fields`: keywords of each call of the engine. `truncate`: maximum tokens of a prompt, of which the first are
        kept; -1: those that fit.
        """
        self._engine = engine
        self._truncate = truncate
        self._id = request_id
        self._fields = fields
        self._count = 0
        self.num_tokens = 0

    async def encode(self, prompts: Sequence[Any], params: PoolingParams) -> list[PoolingOutput]:
        """One answer per prompt, in order. Raises the error of the first that fails; the others are aborted."""

        async def one(prompt: Any) -> PoolingOutput:
            return await self._engine.encode(
                self._cut(prompt), params, self._next_id(), **self._fields
            )

        return await self._all(one, prompts)

    async def scores(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Scores of pairs of texts; see `LLM.score`."""
        calls = self._engine.calls["pooling"]
        if calls.scores_by(self._engine.info.tasks) == "score":
            answers = await self._all(self._score, pairs)
            return [float(each.data[0]) for each in answers]
        texts = list(dict.fromkeys(text for both in pairs for text in both))
        found = await self.encode(texts, PoolingParams(task="embed"))
        vectors = {
            text: each.data
            for text, each in zip(texts, found, strict=True)
        }  # fmt: skip
        return [
            calls.cosine(vectors[first], vectors[second])
            for first, second in pairs
        ]  # fmt: skip

    def _cut(self, prompt: Any) -> Any:
        if self._truncate is None:
            return prompt
        given = {"prompt": prompt} if isinstance(prompt, str) else prompt
        return {**given, "truncate_prompt_tokens": self._truncate}

    async def _score(self, both: tuple[str, str]) -> PoolingOutput:
        return await self._engine.score(
            *both, self._next_id(), **self._fields, truncate_prompt_tokens=self._truncate
        )

    async def _all(
        self, ask: Callable[[Item], Awaitable[PoolingOutput]], items: Sequence[Item]
    ) -> list[PoolingOutput]:
        room = asyncio.Semaphore(AT_ONCE)

        async def bounded(item: Item) -> PoolingOutput:
            async with room:
                return await ask(item)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(bounded(item)) for item in items]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        found = [task.result() for task in tasks]
        self.num_tokens += sum(len(each.prompt_token_ids) for each in found)
        return found

    def _next_id(self) -> str:
        self._count += 1
        return f"{self._id}-{self._count}"
