"""A language model without weights: the next token is a pure function of all tokens before it. Any process.

Each token's "K/V" is one 64-bit number that depends on the whole prefix up to it, as it does in a transformer; a sample
depends on the K/V of all positions, so one wrong block, position or order changes the output.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tenonry.outputs import FinishReason
from tenonry.sampling_params import SamplingParams
from tenonry.step import Adapter

U64 = NDArray[np.uint64]
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MASK = 0xFFFFFFFFFFFFFFFF
RECURRENT = -1  # instead of a window: a state of all tokens, stored once per sequence


def mix(value: U64) -> U64:
    """A well-spread 64-bit number for each element: the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014)."""
    value = value + GOLDEN
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: U64 = value ^ (value >> np.uint64(31))
    return mixed


def mix_int(value: int) -> int:
    """`mix` of one number, modulo 2⁶⁴."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def text_salt(adapter: Adapter | None) -> int:
    """Number of an adapter's content; 0 without an adapter."""
    salt = 0
    for byte in (adapter.digest if adapter else "").encode():
        salt = mix_int(salt * 257 + byte + 1)
    return salt


class Completion(NamedTuple):
    """Expected result of a request: its output tokens, its finish reason, and the stop id that ended it."""

    token_ids: list[int]
    reason: FinishReason
    stop_token_id: int | None


class TokenModel:
    """Arithmetic shared by the fake worker and its oracle.

    `windows`: per KV group, number of last positions read by a sample (0: all). A RECURRENT group is read at the last
    position alone: its number depends on all tokens. `holds_back_stop_ids`: none is sampled before min_tokens.
    """

    def __init__(
        self,
        vocab_size: int = 512,
        seed: int = 0,
        windows: Sequence[int] = (0,),
        *,
        holds_back_stop_ids: bool = True,
    ) -> None:
        self.vocab_size = vocab_size
        self.seed = seed
        self.holds_back_stop_ids = holds_back_stop_ids
        self.windows = tuple(abs(window) for window in windows)
        self._weights = _odd_numbers(1024)

    def weights(self, length: int) -> U64:
        """An odd multiplier per position."""
        if length > len(self._weights):
            self._weights = _odd_numbers(2 * length)
        return self._weights[:length]

    def kv(self, token_ids: NDArray[np.int32], salt: U64) -> U64:
        """K/V, u64[N, T], of N sequences of tokens [N, T] from the first one on. `salt` u64[N]: of the adapter."""
        weights = self.weights(token_ids.shape[1])
        terms = mix(token_ids.astype(np.uint64)) * weights
        sums = np.cumsum(terms, axis=1, dtype=np.uint64)
        prefix = sums + salt[:, None]
        return mix(prefix)

    def pick(self, context: int, output_index: int, seed: int | None) -> int:
        """Next token; `context`: sum of the K/V read, modulo 2⁶⁴."""
        keyed = mix_int(mix_int(context) + output_index + 1)
        seeds = mix_int(self.seed * 31 + (seed or 0))
        return mix_int(keyed ^ seeds) % self.vocab_size

    def allowed(
        self, token_id: int, params: SamplingParams, stop_ids: Sequence[int], output_index: int
    ) -> int | None:
        """Nearest token at or after `token_id` allowed by the parameters, or None."""
        is_early = self.holds_back_stop_ids and output_index < params.min_tokens
        banned = stop_ids if is_early else ()
        if not banned and params.allowed_token_ids is None:
            return token_id
        choices: Sequence[int] = range(self.vocab_size)
        if params.allowed_token_ids is not None:
            choices = params.allowed_token_ids
        left = sorted(set(choices).difference(banned))
        if not left:
            return None
        nearest = bisect.bisect_left(left, token_id)
        return left[nearest % len(left)]

    def next_token(
        self,
        token_ids: Sequence[int],
        num_prompt: int,
        params: SamplingParams,
        stop_ids: Sequence[int] = (),
        adapter: Adapter | None = None,
    ) -> int | None:
        """Next token of a request with these tokens, computed independently."""
        rows = np.asarray([token_ids], np.int32)
        salt = np.array([text_salt(adapter)], np.uint64)
        kv = self.kv(rows, salt)[0]
        context = 0
        for group, window in enumerate(self.windows):
            read = group_kv(kv, group)[-window:]
            context += int(read.sum())
        index = len(token_ids) - num_prompt
        picked = self.pick(context & MASK, index, params.seed)
        return self.allowed(picked, params, stop_ids, index)

    def complete(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        max_model_len: int,
        stop_ids: Sequence[int] = (),
        adapter: Adapter | None = None,
        delivered: Sequence[int] = (),
    ) -> Completion:
        """Tokens of the request after the `delivered` ones, independent of other requests."""
        context = _Context(self, text_salt(adapter))
        tokens = [*prompt, *delivered]
        context.read(tokens)
        limit = (
            max_model_len
            if params.max_tokens is None
            else min(max_model_len, len(prompt) + params.max_tokens)
        )
        output: list[int] = []
        while len(tokens) < limit:
            index = len(tokens) - len(prompt)
            token = self.allowed(
                self.pick(context.total(), index, params.seed), params, stop_ids, index
            )
            if token is None:
                return Completion(output, FinishReason.ERROR, None)
            tokens.append(token)
            output.append(token)
            if token in stop_ids and len(tokens) - len(prompt) >= params.min_tokens:
                return Completion(output, FinishReason.STOP, token)
            context.read([token])
        return Completion(output, FinishReason.LENGTH, None)


def _odd_numbers(count: int) -> U64:
    numbers = mix(np.arange(count, dtype=np.uint64))
    return numbers | np.uint64(1)


class _Context:
    """Values that the next sample of one sequence reads: `TokenModel.kv` in plain numbers, extended by each token."""

    def __init__(self, model: TokenModel, salt: int) -> None:
        self._model = model
        self._prefix = salt
        self._kv: list[list[int]] = [[] for _ in model.windows]

    def read(self, token_ids: Sequence[int]) -> None:
        """Append these tokens."""
        at = len(self._kv[0])
        weights = self._model.weights(at + len(token_ids))[at:].tolist()
        for token, weight in zip(token_ids, weights, strict=True):
            term = mix_int(token) * weight
            self._prefix = (self._prefix + term) & MASK
            kv = mix_int(self._prefix)
            for group, kept in enumerate(self._kv):
                kept.append(mix_int(kv + group) if group else kv)

    def total(self) -> int:
        """Sum of the K/V read, modulo 2⁶⁴."""
        total = 0
        for kept, window in zip(self._kv, self._model.windows, strict=True):
            total += sum(kept[-window:])
        return total & MASK


def group_kv(kv: U64, group: int) -> U64:
    """K/V of the same tokens in another KV group: different numbers, equally dependent on the prefix."""
    return kv if group == 0 else mix(kv + np.uint64(group))
