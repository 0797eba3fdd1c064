"""Programs of installed engines, as child processes; parts that need no engine, in this process."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tenonry_bench.models.engines import PEERS, Engine, find_peers, ours
from tenonry_bench.models.outside.engine_programs import llama_cpp_program, qwen3_gguf
from tenonry_bench.models.outside.engine_programs.answers import check_counts
from tenonry_bench.models.session import Session, prepare
from tenonry_testkit.tiers import nightly_unless

PROMPTS = [[300, 301, 302, 303], [310, 311, 312, 313]]


@pytest.fixture
def options(micro_models, tmp_path):
    return {
        "model": str(micro_models / "micro"),
        "threads": 1,
        "max_model_len": 64,
        "max_num_seqs": 4,
        "engine_args": [],
        "scratch": str(tmp_path),
    }


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "name", nightly_unless(lambda name: name == "tenonry", ["tenonry", *PEERS])
)
@pytest.mark.integration
def test_answers_runs(name, options):
    if name == "tenonry":
        engine: Engine = ours()
    else:
        found, _ = find_peers([name], {})
        if not found:
            pytest.skip(f"{name} is not installed")
        (engine,) = found
    if engine.prepares:
        prepare(engine, options)
    with Session(engine, options) as session:
        session.ready()
        times = session.run(PROMPTS, 3)
        if name in {"tenonry", "llama.cpp"}:
            scored = session.score(PROMPTS[0])
            assert scored.tokens == PROMPTS[0]
            assert scored.perplexity > 1
    assert 0 < min(times.ttft) <= max(times.ttft) <= times.wall
    assert len(times.ttft) == len(times.tpot) == 2
    assert min(times.tpot) > 0
    assert session.version


def test_answers_that_are_too_short_are_no_result():
    with pytest.raises(RuntimeError, match=r"answers of \[2, 3\] tokens instead of 3"):
        check_counts([3, 2], 3)


def test_what_prompts_share():
    shared = list(range(40))
    assert llama_cpp_program.shared_tokens([[*shared, 1, 2], [*shared, 3, 4]]) == 40
    assert llama_cpp_program.shared_tokens([shared]) == 0
    assert llama_cpp_program.shared_tokens([[1, 2, 3], [1, 2, 4]]) == 0
    assert llama_cpp_program.shared_tokens([shared, shared]) == 0


def test_own_tokens_in_batches_sample_at_the_last(monkeypatch):
    monkeypatch.setattr(llama_cpp_program, "BATCH", 3)
    own = llama_cpp_program.own_entries([[7, 8, 9], [7, 8, 5]], 1)
    assert llama_cpp_program.pieces(own) == [
        [(8, 1, 0, False), (9, 2, 0, True), (8, 1, 1, False)],
        [(5, 2, 1, True)],
    ]


@pytest.mark.integration
def test_every_tensor_has_a_name_of_llama_cpp(micro_models):
    names = [tensor.name for tensor in qwen3_gguf.read_tensors(micro_models / "micro", np)]
    assert len(names) == len(set(names)) == 2 + 2 * 11
    assert "blk.1.ffn_up.weight" in names
    assert "token_embd.weight" in names


def test_other_architectures_ask_for_a_file_of_theirs(tmp_path):
    config = {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(RuntimeError, match=r"put the model's \.gguf file into its folder"):
        qwen3_gguf.write_gguf(tmp_path, tmp_path / "out.gguf")


@pytest.mark.integration
def test_gguf_file_holds_the_numbers_of_the_checkpoint(micro_models, tmp_path):
    gguf = pytest.importorskip("gguf")
    qwen3_gguf.write_gguf(micro_models / "micro", tmp_path / "micro.gguf")
    read = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "micro.gguf").tensors}
    for tensor in qwen3_gguf.read_tensors(micro_models / "micro", np):
        wanted = (tensor.bits.astype(np.uint32) << 16).view(np.float32)
        found = gguf.dequantize(read[tensor.name].data, read[tensor.name].tensor_type)
        assert found.reshape(wanted.shape).tolist() == wanted.tolist()


def test_programs_import_nothing_of_ours():
    """They run in environments where tenonry is not installed."""
    folder = qwen3_gguf.__file__.rpartition("/")[0]
    from pathlib import Path

    for file in Path(folder).glob("*.py"):
        assert "import tenonry" not in file.read_text()
        assert "from tenonry" not in file.read_text()
