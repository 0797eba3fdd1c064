"""The torch worker under the conformance suite, with models whose layers keep state by row."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import pytest
import worker_families

from tenonry.info import ModelInfo
from tenonry_testkit.spec import HarnessSpec
from tenonry_testkit.worker import WorkerContract

pytestmark = pytest.mark.slow  # whole models


@pytest.fixture(autouse=True, scope="module")
def folder(tmp_path_factory):
    for suite in (TestBesideAttention, TestStateAlone):
        path = tmp_path_factory.mktemp(suite.family)
        worker_families.save(suite.family, path)
        suite.path = str(path)


class TestBesideAttention(WorkerContract):
    worker = "tenonry_worker_torch.worker:TorchWorker"
    config: ClassVar[dict[str, object]] = {"device": "cpu"}
    loads_once = True
    spec = HarnessSpec(num_blocks=40, max_num_batched_tokens=64, max_model_len=48, vocab_size=96)
    family = "lfm2"
    path = ""

    def model(self):
        return ModelInfo(
            name=self.family,
            path=self.path,
            architecture=self.family,
            max_model_len=48,
            vocab_size=96,
        )


@pytest.mark.nightly
class TestStateAlone(TestBesideAttention):
    family = "mamba2"

    def test_preempted_requests_come_back_as_they_were(self):
        """Nothing grows with the tokens of a request, so there is never a reason to preempt one."""
        spec = dataclasses.replace(
            self.spec, num_blocks=-(-self.spec.max_model_len // self.spec.block_size)
        )
        harness = self.run(spec)
        for number in range(4):
            harness.add(list(self.prompt_ids[: 2 + number]), 30)
        harness.drain()
        assert harness.step_checker.num_preemptions == 0
