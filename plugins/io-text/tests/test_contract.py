"""The conformance suite of IO processors, with the tokenizer of the demo model (IP-1)."""

from __future__ import annotations

import json
from pathlib import Path

import tenonry_demo_model
from tenonry.info import ModelInfo
from tenonry_testkit.io_processor import IOProcessorContract


class TestText(IOProcessorContract):
    io_processor = "text"

    def model(self):
        folder = Path(tenonry_demo_model.model_path())
        facts = json.loads((folder / "config.json").read_text("utf-8"))
        return ModelInfo(
            name="demo",
            path=str(folder),
            architecture=facts["architectures"][0],
            max_model_len=facts["max_position_embeddings"],
            vocab_size=facts["vocab_size"],
            tokenizer_path=str(folder),
        )
