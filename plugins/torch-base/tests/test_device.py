from __future__ import annotations

import logging

import pytest
import torch

from tenonry.errors import ConfigError
from tenonry_torch_base.device import _report_narrowed, choose_device, choose_dtype, prepare_device

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_asking_for_a_missing_device_says_what_is_there():
    assert choose_device("auto") == CPU
    with pytest.raises(ConfigError, match="sees no CUDA device; use device=cpu"):
        choose_device("cuda:0")


def test_dtype_auto_is_the_checkpoints_own_where_the_cpu_can_do_it():
    class Config:
        dtype = torch.bfloat16

    assert choose_dtype("auto", Config, CPU) == torch.bfloat16
    assert choose_dtype("float16", Config, CPU) == torch.float16
    Config.dtype = torch.float16
    expected = torch.float16 if torch.ops.mkldnn._is_mkldnn_fp16_supported() else torch.bfloat16
    assert choose_dtype("auto", Config, CPU) == expected
    Config.dtype = None
    assert choose_dtype("auto", Config, CPU) == torch.float32


def test_float32_weights_become_bfloat16_on_a_gpu_and_a_line_reports_it(caplog):
    class Config:
        dtype = torch.float32

    _report_narrowed.cache_clear()
    with caplog.at_level(logging.INFO, "tenonry.worker"):
        assert [choose_dtype("auto", Config, CUDA) for _ in range(3)] == [torch.bfloat16] * 3
    assert [record.message for record in caplog.records] == [
        "The float32 weights are loaded as bfloat16; --dtype float32 keeps them"
    ]
    assert choose_dtype("float32", Config, CUDA) == torch.float32
    assert choose_dtype("auto", Config, CPU) == torch.float32
    Config.dtype = torch.float16
    assert choose_dtype("auto", Config, CUDA) == torch.float16


def test_bfloat16_on_a_gpu_without_it_is_refused_with_another_type(monkeypatch):
    class Config:
        dtype = torch.bfloat16

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    for wanted in ("auto", "bfloat16"):
        with pytest.raises(
            ConfigError, match=r"capability 8\.0, and this one has 7\.5; use --dtype float16"
        ):
            choose_dtype(wanted, Config, CUDA)
    assert choose_dtype("float16", Config, CUDA) == torch.float16
    assert choose_dtype("auto", Config, CPU) == torch.bfloat16
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert choose_dtype("auto", Config, CUDA) == torch.bfloat16


def test_attention_of_cudnn_is_off_on_a_gpu(monkeypatch):
    """It makes a plan for each new shape, and the shapes of steps change every few tokens."""
    selected = []
    monkeypatch.setattr(torch.cuda, "set_device", selected.append)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    try:
        prepare_device(CUDA, None)
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
    assert selected == [CUDA]
