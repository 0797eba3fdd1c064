"""Long-running work outside the event loop, which keeps serving other requests. Front end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from tenonry.outputs import Logprob, RequestOutput

ENTRY_CHARS = 8  # writing one log-probability takes as long as this many characters of text
INLINE_CHARS = 20_000  # longer texts are tokenised, rendered and written on a helper thread
Result = TypeVar("Result")


async def off_loop(size: int, function: Callable[[], Result]) -> Result:
    """Call `function` here, or on a helper thread if the text it works on is long: `size` characters."""
    if size <= INLINE_CHARS:
        return function()
    return await asyncio.to_thread(function)


def logprobs_size(outputs: Sequence[RequestOutput]) -> int:
    """Size of the log-probabilities in outputs, in characters of equal writing time."""
    lists = [completion.logprobs for output in outputs for completion in output.outputs]
    return (
        sum(map(_entries, [*lists, *(output.prompt_logprobs for output in outputs)])) * ENTRY_CHARS
    )


def _entries(positions: Sequence[Mapping[int, Logprob] | None] | None) -> int:
    """Number of log-probabilities in a list, with as many at each position as at the last."""
    return len(positions) * len(positions[-1] or ()) if positions else 0
