"""Which engine a request goes to: the one that has its prefix, else the less loaded of two random ones. Front end.

Two random choices come within a constant of the best balance without looking at every engine (Mitzenmacher, "The power
of two choices in randomized load balancing", 2001); two front ends that see the same numbers do not run to the same
engine. An engine that has computed a quarter of a prompt or more is preferred, unless it is much busier than the rest.
A beginning that many requests had, such as a system prompt, is worth a copy on every engine and pulls nobody: else one
engine would get all conversations and have room for few of them.
"""

from __future__ import annotations

import hashlib
import random
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from tenonry.messages import EngineCoreRequest

CHUNK_TOKENS = 16
MAX_CHUNKS = 1024
REMEMBERED_CHUNKS = 1 << 17
LEAST_SHARE = 4  # a prefix counts if it is at least 1/4 of the prompt
COMMON = 4  # a prefix of so many requests is everybody's
SLACK = 8  # requests by which the engine with the prefix may exceed twice the load of the others
DIGEST_BYTES = 16

Load = Callable[[int], int]


class LoadBalancer:
    """`pick` answers in a few microseconds; `policy` is `affinity`, `least-loaded` or `round-robin`."""

    def __init__(self, policy: str, seed: int = 0) -> None:
        self._policy, self._random, self._turn = policy, random.Random(seed), -1  # noqa: S311 - no secrets
        # Digest of a prefix → the engine that computed it last, and how many requests had it.
        self._owners: OrderedDict[bytes, tuple[int, int]] = OrderedDict()

    def pick(self, request: EngineCoreRequest, engines: Sequence[int], load: Load) -> int:
        """One of `engines`; `load(engine)` counts its requests, waiting and running."""
        if len(engines) == 1:
            return engines[0]
        if self._policy == "round-robin":
            self._turn += 1
            return engines[self._turn % len(engines)]
        chosen = min(self._random.sample(engines, 2), key=load)
        if self._policy == "affinity":
            prefixes = chunk_digests(request)
            owner = self._owner(prefixes, len(request.prompt_token_ids))
            if owner in engines and load(owner) <= 2 * load(chosen) + SLACK:
                chosen = owner
            self._remember(prefixes, chosen)
        return chosen

    def _owner(self, prefixes: list[bytes], num_tokens: int) -> int:
        """Of the longest prefix that is known; -1 if it is short or common."""
        for place in range(len(prefixes), 0, -1):
            if place * CHUNK_TOKENS * LEAST_SHARE < min(num_tokens, MAX_CHUNKS * CHUNK_TOKENS):
                break
            known = self._owners.get(prefixes[place - 1])
            if known is not None:
                owner, times = known
                return owner if times < COMMON else -1
        return -1

    def _remember(self, prefixes: list[bytes], engine: int) -> None:
        owners = self._owners
        for digest in prefixes:
            _, times = owners.pop(digest, (engine, 0))
            owners[digest] = (engine, times + 1)  # now the youngest
        while len(owners) > REMEMBERED_CHUNKS:
            owners.popitem(last=False)


def chunk_digests(request: EngineCoreRequest) -> list[bytes]:
    """Chained digests of the prompt's whole chunks, the first 16 Ki tokens of it; salt and adapter count."""
    ids = np.ascontiguousarray(request.prompt_token_ids, np.int32)
    count = min(len(ids) // CHUNK_TOKENS, MAX_CHUNKS)
    data = ids[: count * CHUNK_TOKENS].tobytes()
    state = hashlib.blake2b(
        repr((request.cache_salt, request.adapter)).encode(), digest_size=DIGEST_BYTES
    )
    digests = []
    size = CHUNK_TOKENS * ids.itemsize
    for start in range(0, len(data), size):
        state.update(data[start : start + size])
        digests.append(state.copy().digest())
    return digests
