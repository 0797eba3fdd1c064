"""Conversations of a chat service: each turn's prompt is the previous turns and a new message.

Front end. The conversations begin with the same system prompt and run concurrently with different pauses, so that their
turns interleave unpredictably.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tenonry.errors import TenonryError
from tenonry.sampling_params import OutputKind, SamplingParams
from tenonry_bench.workload import default_workloads, narrow

if TYPE_CHECKING:
    from tenonry.client.async_llm import AsyncLLM

ROOM = 1.25


class Sizes(NamedTuple):
    """Tokens of each part; a user writes `user_low` to `user_high` of them. `pause_s`: mean pause before a turn."""

    conversations: int
    turns: int
    system: int
    user_low: int
    user_high: int
    answer: int
    pause_s: float

    @property
    def longest_prompt(self) -> int:
        """Tokens of the last prompt, if a user always writes as much as possible."""
        return self.system + self.turns * self.user_high + (self.turns - 1) * self.answer


class Turn(NamedTuple):
    """Message of a user, after a pause."""

    pause_s: float
    token_ids: list[int]


class Reuse(NamedTuple):
    """Prompt tokens of some turns, and how many of them came out of a prefix cache."""

    cached: int
    prompt: int

    @property
    def rate(self) -> float:
        """0 to 1."""
        return self.cached / self.prompt


def make_conversations(sizes: Sizes, run: int, vocab_size: int) -> list[list[Turn]]:
    """Everything that users write in one run; it depends on `sizes`, `run` and the vocabulary only."""
    draw = random.Random(f"{default_workloads().seed}/{run}")  # noqa: S311  # no secrets
    low, high = narrow(default_workloads().token_range, vocab_size)

    def text(length: int) -> list[int]:
        return [draw.randrange(low, high) for _ in range(length)]

    def turn(number: int) -> Turn:
        written = text(draw.randint(sizes.user_low, sizes.user_high))
        return Turn(draw.uniform(0, 2 * sizes.pause_s), written if number else system + written)

    system = text(sizes.system)
    return [[turn(number) for number in range(sizes.turns)] for _ in range(sizes.conversations)]


def enough_blocks(
    runs: Sequence[Sequence[Sequence[Turn]]], sizes: Sizes, engines: int, block_size: int
) -> int:
    """KV blocks of all engines together: a quarter more than a run's conversations fill at their ends, were nothing
    shared, and no less than the longest sequence needs on each engine.
    """
    filled = max(sum(_blocks(turns, sizes.answer, block_size) for turns in run) for run in runs)
    return max(
        round(ROOM * filled), engines * -(-(sizes.longest_prompt + sizes.answer) // block_size)
    )


def _blocks(turns: Sequence[Turn], answer: int, block_size: int) -> int:
    return -(-sum(len(turn.token_ids) + answer for turn in turns) // block_size)


async def hold(
    engine: AsyncLLM, conversations: Sequence[Sequence[Turn]], answer: int, run: int
) -> Reuse:
    """Run all conversations concurrently, to their ends. Raises TenonryError if an answer is cut short."""
    params = SamplingParams(
        temperature=0.0, max_tokens=answer, ignore_eos=True, output_kind=OutputKind.FINAL
    )
    parts = await asyncio.gather(
        *(
            _converse(engine, turns, params, f"{run}-{number}")
            for number, turns in enumerate(conversations)
        )
    )
    return Reuse(sum(part.cached for part in parts), sum(part.prompt for part in parts))


async def _converse(
    engine: AsyncLLM, turns: Sequence[Turn], params: SamplingParams, name: str
) -> Reuse:
    prompt: list[int] = []
    cached = 0
    prompt_tokens = 0
    for number, turn in enumerate(turns):
        await asyncio.sleep(turn.pause_s)
        prompt += turn.token_ids
        answer: list[int] = []
        reused = 0
        async for output in engine.generate(
            {"prompt_token_ids": list(prompt)}, params, f"{name}-{number}"
        ):
            answer += output.outputs[0].token_ids
            reused = output.num_cached_tokens
        if len(answer) != params.max_tokens:
            raise TenonryError(
                f"turn {number} of conversation {name} got {len(answer)} of {params.max_tokens} tokens"
            )
        cached += reused
        prompt_tokens += len(prompt)
        prompt += answer
    return Reuse(cached, prompt_tokens)
