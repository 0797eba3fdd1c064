"""Interface of the work in a helper process. Helper process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence


class HandlerError(Exception):
    """A handler that cannot be built; the text is for the operator or the client whose job needed it."""


class Handler(ABC):
    """Built once per process, which is then forked for each worker. Named as "module:Class".

    It should start no threads and open no files before its first job: a process that did cannot be forked.
    """

    def __init__(self, setup: bytes) -> None:
        """`setup`: as the pool was given it. Raises HandlerError."""
        self.setup = setup

    def facts(self) -> bytes:
        """Facts sent to the owner once the handler is built."""
        return b""

    @abstractmethod
    def work(self, body: memoryview) -> Sequence[bytes | memoryview]:
        """The answer to one job, in parts that are sent in order. An exception is logged, and ends the worker."""
