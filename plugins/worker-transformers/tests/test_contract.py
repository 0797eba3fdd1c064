"""The worker under the conformance suite that every worker passes."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import generate_families as families
import pytest

from tenonry.info import ModelInfo
from tenonry_testkit.result_shapes import check_shapes
from tenonry_testkit.spec import HarnessSpec
from tenonry_testkit.worker import WorkerContract

pytestmark = pytest.mark.slow  # whole models


class TestFalcon(WorkerContract):
    worker = "tenonry_worker_transformers.worker:TransformersWorker"
    config: ClassVar[dict[str, object]] = {"device": "cpu"}
    loads_once = True
    spec = HarnessSpec(
        num_blocks=40, max_num_batched_tokens=64, max_model_len=48, vocab_size=families.VOCAB
    )
    family = "falcon"

    def model(self):
        return ModelInfo(
            name=self.family,
            path=families.folder(self.family),
            architecture="Test",
            max_model_len=48,
            vocab_size=families.VOCAB,
        )


class TestT5(TestFalcon):
    """An encoder and a decoder."""

    family = "t5"

    supports_logprobs = False  # of prompts, which the encoder reads

    def test_logprobs_of_sampled_tokens_have_the_shapes(self):
        harness = self.run(dataclasses.replace(self.spec, max_num_batched_tokens=6))
        harness.add(list(self.prompt_ids), 4, logprobs=2)
        while harness.scheduler.has_requests() and harness.launch():
            output, future = harness.in_flight[-1]
            check_shapes(output, future.result(), self.model().vocab_size)
            harness.deliver()
