from __future__ import annotations

import json
import random

import pytest

from tenonry.errors import ConfigError
from tenonry_bench.workload import load_workloads, narrow, random_prompts

FILE = {
    "seed": 5,
    "token_range": [10, 20],
    "workloads": {
        "W1": {"kind": "offline", "requests": 2, "prompt_len": 4, "out_len": 3},
        "W4": {"requests": 3, "prompt_len": 6, "out_len": 2, "shared_prefix_len": 5},
        "chat": {"kind": "served", "requests": 1, "prompt_len": 2, "out_len": 1, "concurrency": 1},
    },
    "null": {"unknown parts": "of other tools are no concern of ours"},
}


@pytest.fixture
def workload_file(tmp_path):
    path = tmp_path / "workloads.json"
    path.write_text(json.dumps(FILE))
    return str(path)


def test_prompts_are_those_that_peers_get(workload_file):
    """The formula is part of the format: Random(seed·1000 + 97·run + number), shared part first."""
    draw = random.Random(5 * 1000 + 97 * 2 + 4).randrange
    shared = [draw(10, 20) for _ in range(5)]
    expected = [[*shared, draw(10, 20)] for _ in range(3)]
    assert load_workloads(workload_file).prompts("W4", 2) == expected


def test_prompts_differ_between_runs_and_stay_the_same_within_one(workload_file):
    loaded = load_workloads(workload_file)
    assert loaded.prompts("W1", 0) == loaded.prompts("W1", 0)
    assert loaded.prompts("W1", 0) != loaded.prompts("W1", 1)
    assert len(loaded.prompts("W1", 0, requests=1)) == 1


def test_a_name_without_a_number_has_prompts_of_its_own(workload_file):
    assert load_workloads(workload_file).prompts("chat", 0) != load_workloads(
        workload_file
    ).prompts("W1", 0, 1)


@pytest.mark.parametrize(
    ("vocab_size", "expected"),
    [(0, (300, 8000)), (9000, (300, 8000)), (500, (300, 500)), (200, (100, 200))],
)
def test_ids_stay_inside_the_vocabulary(vocab_size, expected):
    assert narrow((300, 8000), vocab_size) == expected
    for prompt in random_prompts(3, 50, seed=1, vocab_size=vocab_size):
        assert all(expected[0] <= token < expected[1] for token in prompt)


def test_named_workloads_and_kinds(workload_file):
    loaded = load_workloads(workload_file)
    assert loaded.named(None, "offline") == ["W1", "W4"]
    assert loaded.named("chat, W1", "offline") == ["chat", "W1"]
    with pytest.raises(ConfigError, match=r"'W9'.*W1, W4, chat"):
        loaded.named("W9", "offline")


def test_the_packaged_file_holds_every_kind():
    loaded = load_workloads(None)
    assert {workload.kind for workload in loaded.workloads.values()} == {
        "offline",
        "startup",
        "served",
    }
    w1, w2 = loaded.get("W1"), loaded.get("W2")
    assert w1.requests == 64
    assert w1.prompt_len == 128
    assert w1.out_len == 64
    assert w2.requests == 1
    assert w2.prompt_len == 32
    assert w2.out_len == 128
    assert loaded.get("W3").prompt_len > 10 * loaded.get("W3").out_len
    assert loaded.get("W4").shared_prefix_len > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"token_range": [5, 5]}, r"token_range \[5, 5\] is empty"),
        (
            {"workloads": {"W1": {"requests": 0, "prompt_len": 1, "out_len": 1}}},
            r"W1|requests|>= 1",
        ),
        (
            {
                "workloads": {
                    "W1": {"requests": 1, "prompt_len": 4, "out_len": 1, "shared_prefix_len": 4}
                }
            },
            "shares 4 of 4 prompt tokens",
        ),
        ({"seed": "x"}, "seed"),
    ],
)
def test_a_bad_file_is_refused_with_its_fault(tmp_path, change, message):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(FILE | change))
    with pytest.raises(ConfigError, match=message):
        load_workloads(str(path))


def test_a_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.json cannot be read"):
        load_workloads(str(tmp_path / "nowhere.json"))
