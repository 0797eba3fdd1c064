"""A control link whose other end is the test."""

from __future__ import annotations

from typing import Any

from tenonry.info import ModelInfo, PluginRecord
from tenonry.plugin.plan import PluginPlan
from tenonry_scale_out.messages import Attachment
from tenonry_testkit.fakes import ByteIOProcessor

MODEL = ModelInfo(name="m", path="", architecture="A", max_model_len=8, vocab_size=8)


class FakeLink:
    """Collects what is sent."""

    def __init__(self, *loggers: str) -> None:
        plan = PluginPlan(
            tuple(PluginRecord(kind="stat_logger", name=name, target="m:C") for name in loggers)
        )
        self.attachment = Attachment(
            index=1,
            count=2,
            identity="1.1",
            control_address="",
            input_address="",
            output_address="",
            plan=plan,
            model=MODEL,
        )
        self.sent: list[Any] = []
        self.send = self.sent.append


class ForgettingProcessor(ByteIOProcessor):
    """Counts how often it forgot the files that it decoded."""

    num_resets = 0

    def reset_mm_cache(self) -> None:
        self.num_resets += 1
