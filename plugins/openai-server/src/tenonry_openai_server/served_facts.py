"""Facts of the served model for its card, queried from the workers once. Front end, event loop."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import msgspec

from tenonry.errors import TenonryError
from tenonry.info import WorkerFacts

if TYPE_CHECKING:
    from tenonry.client.async_llm import AsyncLLM

logger = logging.getLogger("tenonry.server")

METHOD = "model_facts"
DEADLINE_S = 5.0


class CardFacts(msgspec.Struct, frozen=True):
    """Facts on the model's card in addition to its name; none of them reveals the model's location.

    `kv_bytes_per_token` and `state_bytes_per_sequence` are sums over the ranks of one engine.
    """

    architecture: str
    worker: str
    num_parameters: int
    kv_bytes_per_token: int
    state_bytes_per_sequence: int
    features: dict[str, Any]


class ServedFacts:
    """Results of the workers' call `model_facts`, cached once received. Workers without it have none."""

    def __init__(self) -> None:
        self._asking: asyncio.Task[None] | None = None
        self._is_known = False
        self._facts: CardFacts | None = None

    async def of(self, engine: AsyncLLM) -> CardFacts | None:
        """Return the facts; None if the workers report none. A late or failed call is repeated next time."""
        if not self._is_known:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self._ask(engine))
            # Shared by all waiters, so a disconnected client does not cancel it for the others.
            await asyncio.shield(self._asking)
        return self._facts

    async def _ask(self, engine: AsyncLLM) -> None:
        try:
            async with asyncio.timeout(DEADLINE_S):
                answers = await engine.collective_rpc(METHOD)
        except TimeoutError:
            logger.warning("the workers did not report their model facts within %g s", DEADLINE_S)
            return
        except TenonryError as error:  # the worker has no such method, or the engine has just died
            logger.debug("the workers report no model facts: %s", error)
            self._is_known = not engine.errored
            return
        per_engine = max(1, len(answers) // max(1, len(engine.info.engine_indexes)))
        self._facts = card_facts(
            [msgspec.convert(each, WorkerFacts) for each in answers[:per_engine]]
        )
        self._is_known = True


def card_facts(ranks: list[WorkerFacts]) -> CardFacts | None:
    """Return the facts of one engine from those of its ranks, the first of which represents the whole model."""
    if not ranks:
        return None
    groups = [group for rank in ranks for group in rank.groups]
    first = ranks[0]
    return CardFacts(
        architecture=first.architecture,
        worker=first.worker,
        num_parameters=first.num_parameters,
        kv_bytes_per_token=sum(group.bytes_per_token for group in groups),
        state_bytes_per_sequence=sum(group.state_bytes for group in groups),
        features=first.features,
    )
