"""Identities cover all dependencies of K/V: another model, another division, another version is a miss."""

from __future__ import annotations

import os

import pytest

from tenonry.config import EngineConfig
from tenonry.info import ModelInfo
from tenonry.interfaces.kv_connector import KVConnectorContext, KVConnectorRole
from tenonry.kv_cache import KVCacheConfig, KVCacheGroup
from tenonry_kv_connectors.stores import identity
from tenonry_kv_connectors.stores.identity import WHOLE_BYTES, model_identity


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(bytes(3 * WHOLE_BYTES))
    return tmp_path


def identity_of(folder, *, block_size=4, rank=0, size=8, dtype="float32", **config):
    model = ModelInfo(
        name="m", path=str(folder), architecture="A", max_model_len=64, vocab_size=96, dtype=dtype
    )
    group = KVCacheGroup(layers=("0",), bytes_per_token=size)
    context = KVConnectorContext(
        EngineConfig(model="m", **config),
        model,
        KVConnectorRole.SCHEDULER,
        engine_id=os.urandom(4).hex(),
        kv_cache=KVCacheConfig(num_blocks=9, block_size=block_size, groups=(group,)),
        rank=rank,
    )
    return model_identity(context)


def test_it_is_the_same_in_every_process_and_with_more_blocks(folder):
    assert identity_of(folder) == identity_of(folder, max_num_seqs=7, rank=1)
    (folder / "tokenizer.json").write_text("other")
    assert len({identity_of(folder), identity_of(folder)}) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"block_size": 8},
        {"size": 16},
        {"dtype": "bfloat16"},
        {"tensor_parallel_size": 2},
        {"pipeline_parallel_size": 2},
        {"attention_backend": "other"},
        {"load_format": "dummy"},
        {"worker": {"name": "torch", "options": {"fuse": False}}},
    ],
    ids=str,
)
def test_what_changes_k_and_v_changes_it(folder, change):
    assert identity_of(folder) != identity_of(folder, **change)


def test_other_weights_change_it(folder, monkeypatch):
    before = identity_of(folder)
    weights = folder / "model.safetensors"
    times = (weights.stat().st_atime_ns, weights.stat().st_mtime_ns)
    data = bytearray(weights.read_bytes())
    data[-1] = 1
    weights.write_bytes(data)
    os.utime(weights, ns=times)
    by_content = identity_of(folder)
    assert by_content != before
    os.utime(weights, ns=(0, 0))
    assert identity_of(folder) != by_content
    (folder / "config.json").write_text('{"a": 1}')
    assert identity_of(folder) not in {before, by_content}
    now = identity_of(folder)
    monkeypatch.setattr(identity, "__version__", "another")
    assert identity_of(folder) != now


def test_random_weights_are_those_of_a_seed():
    first = identity_of("", load_format="dummy", seed=1)
    assert first == identity_of("", load_format="dummy", seed=1)
    assert first != identity_of("", load_format="dummy", seed=2)
