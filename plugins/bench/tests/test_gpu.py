"""The whole of `bench gpu` on the CPU, as it is rehearsed before a GPU is used."""

from __future__ import annotations

import pytest

from tenonry.errors import ConfigError
from tenonry_bench.gpu_runs import WAYS, _compared, device_facts
from tenonry_bench.tiny_models import LLAMA_SHAPES


def test_answers_that_differ_are_counted_up_to_the_first_other_token():
    found = _compared("greedy", [[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 7, 6]])
    assert not found.same
    assert found.agreed == [3, 1]
    assert found.text == "greedy DIFFERS after 1 tokens"


@pytest.mark.slow
@pytest.mark.parametrize("device", ["meta", "gpu", "cuda:x", ""])
def test_a_device_that_is_not_measured_is_refused(device: str):
    with pytest.raises(ConfigError, match="cpu, cuda or cuda:N is measured"):
        device_facts(device)


@pytest.mark.slow
def test_a_gpu_beyond_the_last_is_refused(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match="--device cuda:9: this machine has cuda:0 to cuda:0"):
        device_facts("cuda:9")


@pytest.mark.slow
def test_a_missing_gpu_is_refused_with_what_to_do(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="sees no GPU; use --device cpu to rehearse"):
        device_facts("cuda")


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_rehearsal(bench):
    report, printed = bench(
        "gpu", *["--device", "cpu", "--rows", "1,2", "--prompt-len", "8", "--output-len", "4"]
    )
    assert {each["way"] for each in report["matrix"]} == set(WAYS)
    assert all(each["same"] for each in report["matrix"])
    assert [each["rows"] for each in report["steps"]] == [1, 2, 2, 2, 2]
    assert all(each["floor_ms"] > 0 for each in report["steps"])
    assert report["shape"] in LLAMA_SHAPES
    assert report["profile"]["operations"] > 0
    assert "those of the CPU" in printed
