"""Keeps a number of requests under way until every line is answered. The command's process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from tqdm import tqdm

from tenonry.errors import TenonryError
from tenonry_openai_server.batch.answers import AnswerFile, as_json
from tenonry_openai_server.batch.client import BatchClient
from tenonry_openai_server.batch.requests import Request


class BatchRun:
    """`concurrency` tasks share the lines that have no answer yet.

    A line that stays unanswered ends the run: the others would wait as long, one after the other.
    """

    def __init__(self, client: BatchClient, answers: AnswerFile, bar: tqdm[None]) -> None:
        self._client = client
        self._answers = answers
        self._bar = bar
        self._unanswered = ""

    async def run(self, requests: Iterator[Request], concurrency: int) -> None:
        """Send all requests. Raises TenonryError for a line without an answer, after running ones have finished."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(self._work(requests))
        except ExceptionGroup as errors:  # all of one cause: the server ended, or the disk is full
            raise errors.exceptions[0] from None
        if self._unanswered:
            raise TenonryError(self._unanswered)

    async def _work(self, requests: Iterator[Request]) -> None:
        for request in requests:
            reply = await self._client.ask(request)
            if not reply.status:
                reason = reply.body.decode()
                self._unanswered = f"custom_id {request.custom_id!r:.80} got no answer ({reason})"
            else:
                self._answers.add(request, reply.status, reply.request_id, as_json(reply.body))
                self._show()
            if self._unanswered:
                return

    def _show(self) -> None:
        if self._answers.refused:
            self._bar.set_postfix(refused=self._answers.refused, refresh=False)
        self._bar.update()
