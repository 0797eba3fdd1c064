"""Engines that compute layers together detect differences before they load; in threads, over a store in memory."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist
import worker_tools

from tenonry.errors import ConfigError
from tenonry_torch_base.parallel.alike import check_alike, served

FILE = {"model_type": "mixtral", "rope_theta": 1e6, "eos": [1, 2], "transformers_version": "5.1"}


def save(folder, **entries):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**FILE, **entries}))
    return str(folder)


def compare(*engines):
    """Error of each engine, or None."""
    store = dist.HashStore()

    def one(index):
        try:
            check_alike(store, index, len(engines), engines[index], 10)
        except ConfigError as error:
            return str(error)

    with ThreadPoolExecutor() as threads:
        return list(threads.map(one, range(len(engines))))


def of(path, **values):
    return served(worker_tools.context(path, **values))


def test_the_same_model_in_other_folders_is_alike(tmp_path):
    one = of(save(tmp_path / "a"))
    two = of(save(tmp_path / "b", transformers_version="5.2", _name_or_path="/mnt"), seed=3)
    three = of(str(tmp_path / "a"), max_num_seqs=3, max_num_batched_tokens=64)
    assert compare(one, two, three) == [None] * 3


@pytest.mark.parametrize(
    ("entries", "values", "words"),
    [
        ({"rope_theta": 5e5}, {}, "rope_theta (config.json) 500000.0, engine 0 has 1000000.0;"),
        ({"experts": 8}, {}, "experts (config.json) 8, engine 0 has none;"),
        ({}, {"tensor_parallel_size": 2}, "tensor_parallel_size 2, engine 0 has 1;"),
        ({}, {"data_parallel_sync_steps": 4}, "data_parallel_sync_steps 4, engine 0 has 32;"),
        ({}, {"dtype": "bfloat16"}, "dtype bfloat16, engine 0 has float32;"),
        ({}, {"load_format": "dummy"}, "load_format dummy, engine 0 has auto;"),
    ],
)
def test_what_differs_is_named_in_every_engine(tmp_path, entries, values, words):
    base = {"dtype": "float32", "load_format": "auto"}
    first = of(save(tmp_path / "a"), **base)
    other = of(save(tmp_path / "b", **entries), **{**base, **values})
    said = compare(first, first, other)
    assert said[0].startswith(f"engine 2 has {words}")
    assert said == [said[0]] * 3


def test_seeds_of_random_weights_count(tmp_path):
    path = save(tmp_path / "a")
    dummies = [of(path, load_format="dummy", seed=seed) for seed in (1, 2)]
    wanted = "engine 1 has seed 2, engine 0 has 1; engines that share experts need the same model and the same flags"
    assert compare(*dummies) == [wanted] * 2


def test_an_engine_that_says_nothing_is_waited_for_within_the_timeout(tmp_path):
    facts = of(save(tmp_path / "a"))
    with pytest.raises(dist.DistStoreError):
        check_alike(dist.HashStore(), 0, 2, facts, 0.2)


def test_the_engine_with_the_store_stays_until_the_others_have_read(tmp_path):
    facts = of(save(tmp_path / "a"))
    store = dist.HashStore()
    with ThreadPoolExecutor() as threads:
        first = threads.submit(check_alike, store, 0, 2, facts, 10)
        store.set("serves/1", json.dumps({**facts, "dtype": "float16"}))
        with pytest.raises(TimeoutError):
            first.result(0.2)
        store.set("read/1", b"1")
        with pytest.raises(ConfigError, match="engine 1 has dtype float16"):
            first.result(10)
