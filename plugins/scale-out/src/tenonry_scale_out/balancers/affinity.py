"""The load balancer `affinity`: the engine that has a request's prefix, else the less loaded of two. Front end.

An engine that has computed a quarter of a prompt or more is preferred, unless it is much busier than the rest. A
beginning that many requests had, such as a system prompt, is worth a copy on every engine and is not followed:
otherwise one engine would get all conversations and have room for few of them.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np
from pydantic import Field

from tenonry.interfaces.plugin import PluginOptions
from tenonry.messages import EngineCoreRequest
from tenonry_scale_out.balancers.least_loaded import LeastLoaded
from tenonry_scale_out.load_balancer import LoadBalancer, LoadBalancerContext

CHUNK_TOKENS = 16
MAX_CHUNKS = 1024
LEAST_SHARE = 4  # a prefix counts if it is at least 1/4 of the prompt
COMMON = 4  # number of requests that make a prefix common to all engines
SLACK = 8
DIGEST_BYTES = 16


class AffinityOptions(PluginOptions):
    """Options of the load balancer `affinity`."""

    slack: int = Field(
        SLACK,
        ge=0,
        description="Requests by which the engine with the prefix may exceed twice the load of the others.",
    )
    remembered_chunks: int = Field(
        1 << 17, ge=1, description="Stored prefixes, one per 16 tokens of a prompt."
    )


class Affinity(LoadBalancer):
    """The engine that has computed the beginning of the prompt, else the less loaded of two random ones."""

    Options = AffinityOptions

    def __init__(self, context: LoadBalancerContext) -> None:
        super().__init__(context)
        options = context.options
        if not isinstance(options, AffinityOptions):
            options = AffinityOptions()
        self._options = options
        self._least_loaded = LeastLoaded(context)
        # Digest of a prefix → the engine that computed it last, and how many requests had it.
        self._owners: OrderedDict[bytes, tuple[int, int]] = OrderedDict()

    def pick(
        self, request: EngineCoreRequest, candidates: Sequence[int], load: Callable[[int], int]
    ) -> int:
        chosen = self._least_loaded.pick(request, candidates, load)
        prefixes = chunk_digests(request)
        owner = self._owner(prefixes, len(request.prompt_token_ids))
        bound = 2 * load(chosen) + self._options.slack
        if owner in candidates and load(owner) <= bound:
            chosen = owner
        self._remember(prefixes, chosen)
        return chosen

    def _owner(self, prefixes: list[bytes], num_tokens: int) -> int:
        """The engine of the longest prefix that is known; -1 if that is short or common."""
        looked_at = min(num_tokens, MAX_CHUNKS * CHUNK_TOKENS)
        for length in range(len(prefixes), 0, -1):
            if length * CHUNK_TOKENS * LEAST_SHARE < looked_at:
                return -1
            known = self._owners.get(prefixes[length - 1])
            if known is None:
                continue
            owner, times = known
            return owner if times < COMMON else -1
        return -1

    def _remember(self, prefixes: list[bytes], engine: int) -> None:
        owners = self._owners
        for digest in prefixes:
            _, times = owners.pop(digest, (engine, 0))
            owners[digest] = (engine, times + 1)  # now the youngest
        while len(owners) > self._options.remembered_chunks:
            owners.popitem(last=False)


def chunk_digests(request: EngineCoreRequest) -> list[bytes]:
    """Chained digests of the prompt's whole chunks, the first 16 Ki tokens of it; salt and adapter count."""
    ids = np.ascontiguousarray(request.prompt_token_ids, np.int32)
    num_chunks = min(len(ids) // CHUNK_TOKENS, MAX_CHUNKS)
    hashed = ids[: num_chunks * CHUNK_TOKENS]
    data = hashed.tobytes()
    separate = repr((request.cache_salt, request.adapter))
    state = hashlib.blake2b(separate.encode(), digest_size=DIGEST_BYTES)
    digests = []
    size = CHUNK_TOKENS * ids.itemsize
    for start in range(0, len(data), size):
        chunk = data[start : start + size]
        state.update(chunk)
        digest = state.copy().digest()
        digests.append(digest)
    return digests
