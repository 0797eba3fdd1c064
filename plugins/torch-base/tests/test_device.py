from __future__ import annotations

import pytest
import torch

from tenonry.errors import ConfigError
from tenonry_torch_base.device import choose_device, choose_dtype

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
