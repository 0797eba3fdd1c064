"""Behavioural fakes: substitutes without torch for a model, its KV cache, an executor, a connector, a clock."""

from __future__ import annotations

from tenonry_testkit.fakes.blocks import SimpleBlocks
from tenonry_testkit.fakes.clock import VirtualClock
from tenonry_testkit.fakes.connector import MemoryConnector
from tenonry_testkit.fakes.executor import InstantExecutor, NoFeedbackExecutor
from tenonry_testkit.fakes.io_processor import ByteIOProcessor
from tenonry_testkit.fakes.request_codec import KeepingCodec
from tenonry_testkit.fakes.scheduler import ReferenceScheduler
from tenonry_testkit.fakes.stat_logger import RecordingStatLogger
from tenonry_testkit.fakes.tokens import TokenModel
from tenonry_testkit.fakes.worker import FakeKVError, FakeWorker

__all__ = [
    "ByteIOProcessor",
    "FakeKVError",
    "FakeWorker",
    "InstantExecutor",
    "KeepingCodec",
    "MemoryConnector",
    "NoFeedbackExecutor",
    "RecordingStatLogger",
    "ReferenceScheduler",
    "SimpleBlocks",
    "TokenModel",
    "VirtualClock",
]
