"""What the owner of several engines checks; their lives are in `client/test_data_parallel.py` (EC-5, HS-16)."""

from __future__ import annotations

import pytest

from tenonry.errors import ConfigError
from tenonry.launch.fleet import check_alike
from tenonry.messages import EngineFacts


def facts(index: int, **values: int) -> EngineFacts:
    return EngineFacts(
        **{"index": index, "epoch": 1, "num_gpu_blocks": 10, "block_size": 16, "max_model_len": 64, **values}
    )


def test_engines_may_have_different_numbers_of_blocks():
    check_alike([facts(0), facts(1, num_gpu_blocks=7)])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"block_size": 32}, "engine 0 has block_size 16, engine 2 has 32; give --block-size 16 to all"),
        ({"max_model_len": 48}, "engine 0 has max_model_len 64, engine 2 has 48; give --max-model-len 48 to all"),
    ],
)
def test_a_request_must_fit_any(values, words):
    with pytest.raises(ConfigError, match=words):
        check_alike([facts(0), facts(1), facts(2, **values)])
