"""Concurrent streaming clients of every kind, and the ledger of their results. Test process."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from typing import Any

import httpx

STORY = "Once upon a time there was a little girl. "
GREEDY = {"temperature": 0.0}
SAMPLED = {"temperature": 0.9, "top_p": 0.95}
SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["age"],
    "additionalProperties": False,
}
PENALTIES = {"presence_penalty": 1.5, "frequency_penalty": 0.8, "repetition_penalty": 1.3}
FORMAT = {"type": "json_schema", "json_schema": {"name": "age", "schema": SCHEMA, "strict": True}}
REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": GREEDY,
    "seeded": {**SAMPLED, "seed": 7},
    "two": {**SAMPLED, "seed": 8, "n": 2},
    "long": {**GREEDY, "prompt": STORY * 9},  # its prompt takes several steps
    "penalties": {**GREEDY, **PENALTIES},
    "stop": {**GREEDY, "stop": ["named Lily", "went"]},
    "least": {**SAMPLED, "seed": 10, "min_tokens": 18},
    "logprobs": {**GREEDY, "logprobs": 2},
    "schema": {**GREEDY, "response_format": FORMAT},
}
NUM_TOKENS = 20
TIMEOUT_S = 40.0


class Ledger:
    """Results received by one client: by choice, ids, text and reasons; and once, at the end, usage."""

    def __init__(self) -> None:
        self.ids: dict[int, list[int]] = {}
        self.text: dict[int, str] = {}
        self.reasons: dict[int, str] = {}
        self.logprobs: list[float] = []
        self.usage: Any = None
        self.error = ""
        self.is_done = False

    def hear(self, event: dict[str, Any]) -> None:
        assert not self.is_done
        if "error" in event:
            self.error = event["error"]["message"]
            return
        if event.get("usage"):
            assert self.usage is None
            self.usage = event["usage"]
        for choice in event["choices"]:
            index = choice["index"]
            assert index not in self.reasons, "told more after the end"
            self.ids.setdefault(index, []).extend(choice["token_ids"])
            self.text[index] = self.text.get(index, "") + choice["text"]
            if choice["logprobs"]:
                self.logprobs += choice["logprobs"]["token_logprobs"]
            if choice["finish_reason"]:
                self.reasons[index] = choice["finish_reason"]

    def told(self) -> dict[str, Any]:
        """The part that is equal in every run."""
        return {
            "ids": self.ids,
            "text": self.text,
            "reasons": self.reasons,
            "logprobs": [round(value, 2) for value in self.logprobs],
            "usage": self.usage and (self.usage["prompt_tokens"], self.usage["completion_tokens"]),
            "error": self.error,
            "done": self.is_done,
        }


class Clients:
    """All requests concurrently. `on_token(number of tokens so far)` is called with each event."""

    def __init__(self, url: str, on_tokens: Callable[[int], None]) -> None:
        self._url = url + "/v1/completions"
        self._on_tokens = on_tokens
        self._num_tokens = 0
        self.ledgers = {name: Ledger() for name in REQUESTS}

    async def run(self) -> None:
        async with httpx.AsyncClient(timeout=TIMEOUT_S) as client:
            await asyncio.gather(*(self._read(client, name) for name in REQUESTS))

    async def _read(self, client: httpx.AsyncClient, name: str) -> None:
        ledger = self.ledgers[name]
        body = {
            "prompt": STORY, "max_tokens": NUM_TOKENS, "stream": True, "return_token_ids": True,
            "stream_options": {"include_usage": True}, **REQUESTS[name],
        }  # fmt: skip
        async with client.stream("POST", self._url, json=body) as response:
            async for line in response.aiter_lines():
                data = line.removeprefix("data: ").strip()
                if data == "[DONE]":
                    ledger.is_done = True
                elif data:
                    ledger.hear(json.loads(data))
                    self._num_tokens = sum(map(len, self._all_ids()))
                    self._on_tokens(self._num_tokens)

    def _all_ids(self) -> list[list[int]]:
        return [ids for ledger in self.ledgers.values() for ids in ledger.ids.values()]


def run_all(url: str, on_tokens: Callable[[int], None] = lambda _: None) -> dict[str, Ledger]:
    """All requests to their ends."""
    clients = Clients(url, on_tokens)
    asyncio.run(clients.run())
    return clients.ledgers


def told_of(ledgers: dict[str, Ledger]) -> dict[str, dict[str, Any]]:
    return {name: ledger.told() for name, ledger in ledgers.items()}


def alike(some: list[float], others: list[float]) -> bool:
    pairs = zip(some, others, strict=False)
    return len(some) == len(others) and all(math.isclose(*pair, abs_tol=0.02) for pair in pairs)


def differences(
    expected: dict[str, dict[str, Any]], ledgers: dict[str, Ledger]
) -> dict[str, tuple[Any, Any]]:
    """Requests with other results. Another batch sums in another order, so log-probabilities may differ in their last
    digits.
    """
    found = {}
    for name, told in told_of(ledgers).items():
        wanted = dict(expected[name])
        if not alike(wanted.pop("logprobs"), told.pop("logprobs")) or told != wanted:
            found[name] = (wanted, told)
    return found
