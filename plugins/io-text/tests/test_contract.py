"""The conformance suite of IO processors, with the tokenizer of the demo model (IP-1)."""

from __future__ import annotations

import tenonry_demo_model
from tenonry_testkit.fakes.model import folder_model
from tenonry_testkit.io_processor import IOProcessorContract


class TestText(IOProcessorContract):
    io_processor = "text"

    def model(self):
        return folder_model(tenonry_demo_model.model_path())
