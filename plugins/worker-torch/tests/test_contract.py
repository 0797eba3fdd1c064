"""The torch worker under the conformance suite that every worker passes."""

from __future__ import annotations

from typing import ClassVar

import pytest
import worker_families

from tenonry.info import ModelInfo
from tenonry_kernels_cpu.kernels import CpuKernels
from tenonry_testkit.spec import HarnessSpec
from tenonry_testkit.worker import WorkerContract


@pytest.fixture(autouse=True, scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("qwen3")
    worker_families.save("qwen3", path)
    TestTorch.path = TestTorchInvariant.path = str(path)


class TestTorch(WorkerContract):
    worker = "tenonry_worker_torch.worker:TorchWorker"
    config: ClassVar[dict[str, object]] = {"device": "cpu"}
    loads_once = True
    spec = HarnessSpec(num_blocks=40, max_num_batched_tokens=64, max_model_len=48, vocab_size=96)
    path = ""

    def model(self):
        return ModelInfo(
            name="qwen3",
            path=self.path,
            architecture="Qwen3ForCausalLM",
            max_model_len=48,
            vocab_size=96,
        )


@pytest.mark.nightly
class TestTorchInEightBits(TestTorch):
    """K and V in 8 bits: tokens depend on the request alone here, too."""

    config: ClassVar[dict[str, object]] = {"device": "cpu", "kv_cache_dtype": "int8"}


@pytest.mark.nightly
class TestTorchReference(TestTorch):
    """The reference attention backend, and the model's own code."""

    config: ClassVar[dict[str, object]] = {
        "device": "cpu",
        "attention_backend": "sdpa",
        "enforce_eager": True,
    }


@pytest.mark.skipif(CpuKernels.refusal() is not None, reason="no library was built")
@pytest.mark.slow
class TestTorchInvariant(TestTorch):
    """A request's results do not depend on the rest of the batch (WK-14)."""

    config: ClassVar[dict[str, object]] = {
        "device": "cpu",
        "dtype": "float32",
        "batch_invariant": True,
    }
