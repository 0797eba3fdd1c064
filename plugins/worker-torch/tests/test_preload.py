"""The process of which engines are forked imports what they do, and opens no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from transformers import LlamaConfig

pytestmark = pytest.mark.integration

PROGRAM = """
import json, os, sys
import torch
calls = []
for name in ("is_available", "device_count", "get_device_capability", "current_device", "_lazy_init"):
    setattr(torch.cuda, name, lambda *args, name=name: calls.append(name))
from tenonry.info import ModelInfo
from tenonry_worker_torch.options import TorchOptions
from tenonry_worker_torch.worker import TorchWorker
model = ModelInfo(name="m", path=sys.argv[1], architecture="LlamaForCausalLM", max_model_len=8, vocab_size=8)
files = os.listdir("/proc/self/fd")
TorchWorker.preload(model, TorchOptions())
print(json.dumps({
    "calls": calls,
    "threads": len(os.listdir("/proc/self/task")),
    "files": len(os.listdir("/proc/self/fd")) - len(files),
    "imported": [name for name in sys.modules if name.startswith(("tenonry_", "transformers.models.llama"))],
}))
"""
OF_GPUS = "tenonry_worker_torch_cuda.passes.graphs"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("gpus", ["", "0"])
def test_no_gpu_is_opened_and_no_thread_started(tmp_path, gpus):
    LlamaConfig(architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpus, "OPENBLAS_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(ended.stdout)
    assert found["calls"] == []
    assert (found["threads"], found["files"]) == (1, 0)
    assert "tenonry_worker_torch.loader" in found["imported"]
    assert "transformers.models.llama.modeling_llama" in found["imported"]
    assert (OF_GPUS in found["imported"]) is bool(gpus)
