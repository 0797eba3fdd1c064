"""A model of a few hundred weights, workloads of a few tokens, and a peer that is a program of ten lines."""

from __future__ import annotations

import json
import sys

import pytest

from tenonry_bench.models import checkpoints, engines

SHAPE = {
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 128,
}
WORKLOADS = {
    "seed": 1,
    "token_range": [260, 500],
    "workloads": {
        "W1": {"kind": "offline", "requests": 3, "prompt_len": 6, "out_len": 4},
        "W3": {"kind": "offline", "requests": 2, "prompt_len": 40, "out_len": 2},
        "W5": {"kind": "startup", "requests": 1, "prompt_len": 4, "out_len": 1},
        "W6": {"kind": "served", "requests": 3, "prompt_len": 6, "out_len": 2, "concurrency": 2},
    },
}
PEER = """
from engine_programs.answers import answer_runs

def run(prompts, out_len):
    return {"wall": 0.5, "ttft": [0.25] * len(prompts), "tpot": [0.1] * len(prompts)}

def load():
    print("a peer may print what it likes", flush=True)
    return "1.2.3", run

answer_runs(load)
"""
BROKEN_PEER = """
import sys
sys.exit("the peer has no such model")
"""


@pytest.fixture(scope="session")
def micro_models(tmp_path_factory):
    """A folder with the model `micro`, as `tiny` and `small` are written."""
    folder = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "PIECES", 512)
        patch.setattr(checkpoints, "TEXT_BYTES", 20_000)
        patch.setitem(checkpoints.MODELS, "micro", SHAPE)
        checkpoints.find_model("micro", folder)
    return folder


@pytest.fixture
def workload_file(tmp_path):
    path = tmp_path / "workloads.json"
    path.write_text(json.dumps(WORKLOADS))
    return path


@pytest.fixture
def peers(tmp_path, monkeypatch):
    """Programs of peers in a folder of their own: `steady` and `broken`; `absent` is not installed."""
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "steady_peer.py").write_text(PEER)
    (folder / "broken_peer.py").write_text(BROKEN_PEER)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    kinds = {
        "steady": engines.Kind(("json",), "steady_peer", "pip install steady"),
        "broken": engines.Kind(("json",), "broken_peer", "pip install broken"),
        "absent": engines.Kind(("no_such_module",), "absent_peer", "pip install absent"),
    }
    monkeypatch.setattr(engines, "PEERS", kinds)
    return sys.executable
