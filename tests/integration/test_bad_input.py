"""Bad input on the command line and in Python: one line that names the thing, the value, the bound and the remedy."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tenonry import LLM, SamplingParams
from tenonry.cli import main
from tenonry.errors import ConfigError, RequestError
from tenonry.plugin.kinds import KINDS

NULL = ["--load-format", "dummy", "--io-processor", "none", "--worker", "null"]


def refused(capsys, *arguments: str, status: int = 1) -> str:
    """Run the command line; returns the one line on standard error."""
    assert main(["generate", "hi", *arguments]) == status
    text = capsys.readouterr().err.strip().splitlines()
    errors = [line for line in text if line.startswith("tenonry: error: ")]
    assert len(errors) == 1, text
    return errors[0]


def test_wrong_model_path(capsys, tmp_path):
    line = refused(capsys, "--model", str(tmp_path / "nowhere"))
    assert str(tmp_path / "nowhere") in line


def test_folder_that_is_no_model(capsys, tmp_path):
    assert "config.json" in refused(capsys, "--model", str(tmp_path))


def test_weights_that_could_run_code_are_refused(capsys, weightless_model):
    (weightless_model / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    assert "safetensors" in refused(capsys, "--model", str(weightless_model))


def test_model_that_cannot_run(capsys, weightless_model):
    """An audio encoder is rejected by name, before loading, by every worker."""
    config = json.loads((weightless_model / "config.json").read_text())
    config |= {"architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper"}
    (weightless_model / "config.json").write_text(json.dumps(config))
    line = refused(
        capsys, "--model", str(weightless_model), "--load-format", "dummy", "--io-processor", "none"
    )
    assert "Whisper" in line


@pytest.mark.parametrize(
    ("flag", "name", "nearest"),
    [
        ("--scheduler", "batchin", "batching"),
        ("--executor", "umi", "uni"),
        ("--worker", "torhc", "torch"),
    ],
)
def test_unknown_plugin_names_the_nearest(capsys, weightless_model, flag, name, nearest):
    line = refused(capsys, "--model", str(weightless_model), "--load-format", "dummy", flag, name)
    assert f"'{name}'" in line
    assert f"did you mean '{nearest}'?" in line


def test_first_party_plugin_that_is_missing_names_the_package(
    capsys, weightless_model, monkeypatch
):
    kind = dataclasses.replace(KINDS["executor"], provider={"moon": "tenonry-executor-moon"})
    monkeypatch.setitem(KINDS, "executor", kind)
    line = refused(
        capsys, "--model", str(weightless_model), "--load-format", "dummy", "--executor", "moon"
    )
    assert "pip install tenonry-executor-moon" in line


def test_unknown_flag(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["generate", "hi", "--max-modle-len", "5"])
    assert caught.value.code == 2
    assert "--max-modle-len" in capsys.readouterr().err


def test_unknown_key_in_the_config_file(capsys, tmp_path):
    path = tmp_path / "engine.yaml"
    path.write_text("model: demo\nmax_modle_len: 5\n")
    line = refused(capsys, "--config", str(path))
    assert "max_modle_len" in line
    assert "max_model_len" in line


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--max-num-seqs", "0"], "max_num_seqs"),
        (["--gpu-memory-utilization", "1.5"], "gpu_memory_utilization"),
        (["--max-num-batched-tokens", "8", "--max-num-seqs", "64"], "max_num_batched_tokens"),
        (["--max-model-len", "4096"], "512"),
        (["--scheduler-option", "nonsense=1"], "nonsense"),
        (["--temperature", "-1"], "temperature"),
        (["--top-p", "0"], "top_p"),
        (["--max-tokens", "0"], "max_tokens"),
    ],
)
def test_settings_out_of_bounds(capsys, weightless_model, arguments, named):
    assert named in refused(capsys, "--model", str(weightless_model), *NULL, *arguments)


def make_llm(model, **settings) -> LLM:
    return LLM(
        model=str(model),
        load_format="dummy",
        skip_tokenizer_init=True,
        worker="null",
        max_num_seqs=8,
        **settings,
    )


def test_pool_too_small_for_one_request_is_refused_with_both_numbers(weightless_model):
    with pytest.raises(ConfigError, match=r"max_model_len=512.*holds 64 tokens"):
        make_llm(weightless_model, num_gpu_blocks_override=4, block_size=16, max_model_len=512)


def test_length_that_nobody_asked_for_is_cut_to_the_pool(weightless_model):
    with make_llm(weightless_model, num_gpu_blocks_override=4, block_size=16) as llm:
        assert llm.info.max_model_len == 64
        with pytest.raises(RequestError, match=r"70 tokens.*max_model_len=64"):
            llm.generate([[5] * 70], SamplingParams(max_tokens=1))


def test_pool_that_overflows_preempts_and_all_finish(weightless_model):
    """Fault 19: eight requests of 100 tokens share a pool of 160."""
    with make_llm(
        weightless_model, num_gpu_blocks_override=10, block_size=16, max_model_len=128
    ) as llm:
        params = SamplingParams(max_tokens=60, temperature=0, ignore_eos=True)
        outputs = llm.generate([[5 + i] * 40 for i in range(8)], params)
        assert [len(output.outputs[0].token_ids) for output in outputs] == [60] * 8
        assert sum(output.metrics.num_preemptions for output in outputs) > 0


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ([], "empty"),
        ([1, -2], "prompt_token_ids"),
        ([1, 512], "id 512; ids are 0 to 511"),
        ("text", "no tokenizer"),
    ],
)
def test_bad_prompts(weightless_model, prompt, reason):
    with make_llm(weightless_model) as llm:
        with pytest.raises(RequestError, match=reason):
            llm.generate([prompt], SamplingParams(max_tokens=1))
        assert llm.generate([[1, 2]], SamplingParams(max_tokens=2, temperature=0))[0].finished
