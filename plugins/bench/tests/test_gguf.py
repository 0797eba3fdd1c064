"""`tenonry bench gguf`: refused words, scores of texts, and the whole of it on a file of a few hundred kilobytes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tenonry_bench import gguf
from tenonry_bench.__main__ import main
from tenonry_bench.models import engines
from tenonry_bench.models.outside.engine_programs import llama_cpp_program
from tenonry_bench.models.session import Scored
from tenonry_bench.workload import Workload, WorkloadFile

SMALL = WorkloadFile(
    seed=1,
    token_range=(10, 250),
    workloads={
        "start": Workload(kind="startup", requests=1, prompt_len=4, out_len=1),
        "one stream": Workload(requests=1, prompt_len=4, out_len=4),
    },
)
PEER = """
from engine_programs.answers import answer_runs

def run(prompts, out_len):
    return {"wall": 0.5, "ttft": [0.25] * len(prompts), "tpot": [0.1] * len(prompts)}

def score(tokens):
    return {"tokens": tokens, "nll": [1.0 for _ in tokens[1:]]}

answer_runs(lambda: ("1.2.3", run, score))
"""


class Logits:
    """A decoder whose logits prefer the successor of each token."""

    def __init__(self, vocab_size):
        self.vocab_size = vocab_size

    def logits(self, entries):
        rows = np.zeros((len(entries), self.vocab_size), np.float32)
        for row, entry in zip(rows, entries, strict=True):
            assert entry.samples
            row[(entry.token + 1) % self.vocab_size] = math.log(2)
        return list(rows)


def test_scores_are_of_the_tokens_that_follow(monkeypatch):
    monkeypatch.setattr(llama_cpp_program, "BATCH", 2)
    got = llama_cpp_program.negative_log_likelihoods(Logits(9), [3, 4, 5, 7])
    assert got == pytest.approx([math.log(10 / 2), math.log(10 / 2), math.log(10)])


def test_perplexity_of_a_uniform_guess_is_the_number_of_choices():
    assert Scored([1, 2, 3], [math.log(50)] * 2).perplexity == pytest.approx(50)


def test_the_page_is_english():
    assert len(gguf.read_text(None).split()) > 250


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no-such.gguf"], "there is no file 'no-such.gguf'"),
        pytest.param([__file__], "test_gguf.py", marks=pytest.mark.integration),
        ([__file__, "--text", "no-such.txt"], "--text no-such.txt cannot be read"),
        ([__file__, "--peer-python", "llama.cpp=/no/such"], "there is no file '/no/such'"),
    ],
)
def test_bad_words_are_refused_before_anything_runs(words, message, capsys):
    assert main(["gguf", *words]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_table_beside_a_peer(bench, tmp_path, monkeypatch):
    from tenonry_testkit import gguf_files

    file = gguf_files.write(tmp_path / "micro.gguf")
    (tmp_path / "steady_peer.py").write_text(PEER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    peer = engines.Kind(("json",), "steady_peer", "pip install steady", imports="import json")
    monkeypatch.setattr(engines, "PEERS", {gguf.PEER: peer})
    monkeypatch.setattr(gguf, "WORKLOADS", SMALL)
    text = tmp_path / "text.txt"
    text.write_text("the end and the beginning")
    report, printed = bench("gguf", file, "--runs", "1", "--threads", "1", "--text", text)
    found = {(each["workload"], each["figure"]): each for each in report["results"]}
    assert found["page of text", "perplexity"]["engines"]["llama.cpp"]["median"] == pytest.approx(
        math.e
    )
    for result in found.values():
        assert set(result["engines"]) == {"tenonry", "llama.cpp"}
        assert result["ratios"]["llama.cpp"]["n"] == 1
    assert "over llama.cpp" in printed
