"""POST /v1/embeddings, /v1/rerank, /v1/score, /v1/classify and /pooling, over the server's own door. Front end, event
loop.
"""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tenonry.errors import RequestError
from tenonry.sampling_params import PoolingParams
from tenonry_routes.pooling.pool import Pool
from tenonry_routes.pooling.requests import (
    Body,
    Classify,
    Embeddings,
    Pooling,
    Rerank,
    Score,
    check_count,
    check_names,
    parsed,
    prompts,
)

TASKS = ("embed", "classify", "score")


class PoolingRoutes:
    """The answers. `context` is the server's RouteContext."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._door = context.chats
        self._labels: dict[int, str] | None = None

    async def embeddings(self, request: Request) -> Response:
        """A vector per input, in OpenAI's form."""
        body, pool, answer = await self._begin(request, Embeddings, "embd")
        asked = prompts(body.input)
        params = PoolingParams(dimensions=body.dimensions, normalize=body.normalize)
        async with self._door.watch(request):
            found = await pool.encode(asked, params)
        write = _base64 if body.encoding_format == "base64" else _numbers
        answer["data"] = [
            {"object": "embedding", "index": index, "embedding": write(each.data)}
            for index, each in enumerate(found)
        ]
        return self._end(request, answer, pool)

    async def pooling(self, request: Request) -> Response:
        """The numbers of any task that the model serves, per input, in vLLM's form."""
        body, pool, answer = await self._begin(request, Pooling, "pool")
        asked = prompts(body.input)
        served = self._context.engine.info.tasks
        task = body.task or next((each for each in TASKS if each in served), "embed")
        params = PoolingParams(task=task, dimensions=body.dimensions, normalize=body.normalize)
        async with self._door.watch(request):
            found = await pool.encode(asked, params)
        write = _base64 if body.encoding_format == "base64" else _numbers
        answer["data"] = [
            {"object": "pooling", "index": index, "data": write(each.data)}
            for index, each in enumerate(found)
        ]
        return self._end(request, answer, pool)

    async def classify(self, request: Request) -> Response:
        """The scores of each class, and the label of the best, per input."""
        body, pool, answer = await self._begin(request, Classify, "classify")
        asked = prompts(body.input)
        async with self._door.watch(request):
            found = await pool.encode(asked, PoolingParams(task="classify"))
        labels = self._known_labels()
        answer["data"] = [
            {
                "index": index,
                "label": labels.get(int(np.argmax(each.data))),
                "probs": each.data.tolist(),
                "num_classes": len(each.data),
            }
            for index, each in enumerate(found)
        ]
        return self._end(request, answer, pool)

    async def score(self, request: Request) -> Response:
        """Scores of pairs of texts: one with each of several, or two lists pair by pair."""
        body, pool, answer = await self._begin(request, Score, "score")
        pairs = self._context.engine.calls["pooling"].matched(body.text_1, body.text_2)
        check_count("text_2", len(pairs))
        async with self._door.watch(request):
            found = await pool.scores(pairs)
        answer["data"] = [
            {"object": "score", "index": index, "score": score} for index, score in enumerate(found)
        ]
        return self._end(request, answer, pool)

    async def rerank(self, request: Request) -> Response:
        """Documents by how well they go with a query, the best first."""
        body, pool, answer = await self._begin(request, Rerank, "rerank")
        texts = [
            each if isinstance(each, str) else each.text
            for each in body.documents
        ]  # fmt: skip
        if not texts:
            raise RequestError("documents: it is empty; give at least one", "documents")
        check_count("documents", len(texts))
        if body.top_n is not None and body.top_n < 1:
            raise RequestError(f"top_n={body.top_n}: it must be at least 1", "top_n")
        async with self._door.watch(request):
            scores = await pool.scores([(body.query, text) for text in texts])
        order = sorted(range(len(texts)), key=lambda index: -scores[index])
        del answer["object"]
        answer["results"] = []
        for index in order[: body.top_n]:
            result: dict[str, Any] = {"index": index, "relevance_score": scores[index]}
            if body.return_documents:
                result["document"] = {"text": texts[index]}
            answer["results"].append(result)
        return self._end(request, answer, pool)

    async def _begin(
        self, request: Request, kind: type[Body], prefix: str
    ) -> tuple[Body, Pool, dict[str, Any]]:
        """The checked request, its requests to the engine, and the head of the answer."""
        value = await self._door.read(request)
        check_names(kind, value, self._door.fields(request))
        body = parsed(kind, value)
        model = await self._door.model(request, body.model)
        request_id = f"{prefix}-{self._door.request_id(request)}"
        pool = Pool(
            self._context.engine, request_id, body.engine_fields, body.truncate_prompt_tokens
        )
        head = {"id": request_id, "object": "list", "created": int(time.time()), "model": model}
        return body, pool, head

    def _end(self, request: Request, answer: dict[str, Any], pool: Pool) -> Response:
        count = pool.num_tokens
        self._door.count(request, count)
        answer["usage"] = {"prompt_tokens": count, "total_tokens": count}
        sent: Response = self._door.answer(answer)
        return sent

    def _known_labels(self) -> dict[int, str]:
        """The names of the classes, as the model's config.json has them."""
        if self._labels is None:
            folder = Path(self._context.engine.model.path)
            text = (folder / "config.json").read_text(encoding="utf-8")
            found = json.loads(text).get("id2label") or {}
            self._labels = {
                int(number): str(name)
                for number, name in found.items()
            }  # fmt: skip
        return self._labels


def _numbers(vector: Any) -> list[float]:
    numbers: list[float] = vector.tolist()
    return numbers


def _base64(vector: Any) -> str:
    """Little-endian float32, as OpenAI's clients read it."""
    data = np.asarray(vector, "<f4").tobytes()
    return base64.b64encode(data).decode()


def build(context: Any) -> APIRouter:
    """The routes; some have a second path without /v1, and /v2/rerank is Cohere's."""
    router = APIRouter()
    routes = PoolingRoutes(context)
    told = context.describe("Create embeddings", Embeddings)
    router.post("/v1/embeddings", **told)(routes.embeddings)
    told = context.describe("Pool a prompt by any supported task", Pooling)
    router.post("/pooling", **told)(routes.pooling)
    router.post("/v1/pooling", include_in_schema=False)(routes.pooling)
    router.post("/v2/rerank", include_in_schema=False)(routes.rerank)
    for name, summary, body in (
        ("rerank", "Documents by relevance", Rerank),
        ("score", "Scores of pairs of texts", Score),
        ("classify", "Classes of texts", Classify),
    ):
        endpoint = getattr(routes, name)
        told = context.describe(summary, body)
        router.post(f"/v1/{name}", **told)(endpoint)
        router.post(f"/{name}", include_in_schema=False)(endpoint)
    return router


build.at_root = True  # type: ignore[attr-defined]
