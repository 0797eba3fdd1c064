"""Output of `models check` for a folder, and its exit status."""

from __future__ import annotations

import json

import pytest

from tenonry.cli import main
from tenonry_models.report import size

GROUP = {"kind": "full", "layers": 2, "bytes_per_token": 128, "state_bytes": 0, "window": 0}
FLAGS = ("--worker", "torch", "--device", "cpu", "--memory", "1G")


@pytest.fixture
def check(capsys):
    """Runs the command; returns its exit status and its JSON output."""

    def run(folder, *words):
        status = main(["models", "check", str(folder), "--json", *FLAGS, *words])
        return status, json.loads(capsys.readouterr().out)

    return run


def test_a_model_that_can_be_served(check, small_model):
    folder, model = small_model
    status, found = check(folder)
    assert status == 0
    assert found["servable"] is True
    assert (found["architecture"], found["model_type"]) == ("LlamaForCausalLM", "llama")
    assert found["worker"] == "torch"
    assert found["groups"] == [GROUP]
    assert found["kv_bytes_per_token"] == 128
    assert found["num_parameters"] == model.num_parameters()
    assert found["weight_bytes"] == found["stored_bytes"] == 4 * model.num_parameters()
    assert found["stored_here"] is True
    assert found["max_model_len"] == found["max_context"] == 64
    assert found["features"]["tensor_parallel"] == [1, 2]
    assert found["features"]["pipeline_parallel"] == 2
    assert found["features"]["dtype"] == "float32"


def test_text_names_each_fact_once(small_model, capsys):
    folder, _ = small_model
    assert main(["models", "check", str(folder), *FLAGS]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "model", "worker", "weights", "KV", "context", "features", "servable",
    ]  # fmt: skip
    assert lines[3] == "KV cache    full: 2 layers, 128 bytes per token"
    assert lines[-1] == "servable    yes"


def test_a_config_alone_is_enough(check, write_config):
    status, found = check(write_config())
    assert status == 0
    assert found["stored_here"] is False
    assert found["stored_bytes"] == 0
    assert found["groups"] == [GROUP]


@pytest.mark.parametrize("words", [(), ("--worker", "auto")])
def test_a_quantised_config_alone_is_judged_by_what_reads_it(check, write_config, words):
    """The error mentions no load_format, which was not set."""
    known = {"quant_method": "gptq", "bits": 4, "group_size": 8}
    status, found = check(write_config(quantization_config=known), *words)
    assert (status, found["reason"]) == (0, "")
    assert found["features"]["quantization"] == ["gptq"]
    unknown = {"quant_method": "mxfp4"}
    status, found = check(write_config(quantization_config=unknown), *words)
    assert status == 1
    assert (
        "quantised (mxfp4), and none of the installed quantisations reads that" in found["reason"]
    )
    assert "load_format" not in found["reason"]


def test_a_load_format_that_was_set_is_named(check, write_config):
    known = {"quant_method": "gptq", "bits": 4, "group_size": 8}
    status, found = check(write_config(quantization_config=known), "--load-format", "dummy")
    assert status == 1
    assert "load_format=dummy" in found["reason"]


def test_a_config_alone_can_be_judged_and_not_loaded(write_config):
    from tenonry import LLM
    from tenonry.errors import ModelError

    with pytest.raises(ModelError, match=r"holds no weights of any kind|no \*\.safetensors"):
        LLM(model=str(write_config()), device="cpu", skip_tokenizer_init=True)


def test_what_is_not_read_of_a_folder_is_a_note(check, small_model, capsys):
    folder, _ = small_model
    (folder / "other.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    (folder / "adapter_config.json").write_text("{}")
    status, found = check(folder)
    assert status == 0
    assert found["stored_here"]
    notes = found["features"]["notes"]
    assert [note.split()[0] for note in notes] == ["adapter_config.json", "model.safetensors"]
    assert "other.safetensors beside them are not read" in notes[1]
    assert main(["models", "check", str(folder), *FLAGS]) == 0
    assert capsys.readouterr().out.count("\nnote  ") == 2


def test_shards_without_an_index_are_servable_when_all_are_there(check, small_model):
    folder, _ = small_model
    whole = folder / "model.safetensors"
    whole.rename(folder / "model-00001-of-00002.safetensors")
    status, found = check(folder)
    assert status == 1
    assert "lacks model-00002-of-00002.safetensors" in found["reason"]
    (folder / "model-00001-of-00002.safetensors").rename(
        folder / "model-00001-of-00001.safetensors"
    )
    assert check(folder)[0] == 0


def test_a_refused_model_says_why_and_what_would_serve_it(check, write_config):
    folder = write_config(model_type="mamba3", architectures=["Mamba3ForCausalLM"])
    status, found = check(folder)
    assert status == 1
    assert found["servable"] is False
    assert "Mamba3ForCausalLM" in found["reason"]
    assert "torch" not in found["served_by"]


@pytest.mark.parametrize("more", [0, 1])
def test_a_tokenizer_that_does_not_fit_is_named(check, small_model, more):
    """The model has 32 rows."""
    from tokenizers import Tokenizer, models

    folder, _ = small_model
    words = {f"w{number}": number for number in range(32 + more)}
    Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    status, found = check(folder)
    assert (status, found["servable"]) == (more, not more)
    assert ("plain text has ids up to 32 ('w32')" in found["reason"]) == bool(more)


def test_weights_that_do_not_fit_the_config(check, small_model):
    folder, _ = small_model
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 25}))
    status, found = check(folder)
    assert status == 1
    assert "mlp" in found["reason"]
    assert "model.safetensors" in found["reason"]


def test_pickled_weights_name_the_command(check, write_config):
    folder = write_config()
    (folder / "pytorch_model.bin").write_bytes(b"")
    status, found = check(folder)
    assert status == 1
    assert f"tenonry models convert {folder}" in found["reason"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ("-tp", "3"),
            "cannot be cut for tensor_parallel_size=3; use 1 or 2, and --data-parallel-size",
        ),
        (("-pp", "3"), "has 2 pipeline stages at most"),
        (("--memory", "1000"), "the weights take"),
        (("--kv-cache-memory-bytes", "10"), "kv_cache_memory_bytes=10 is too small"),
    ],
)
def test_settings_that_the_model_cannot_have(check, small_model, words, reason):
    """The facts are still reported."""
    folder, _ = small_model
    status, found = check(folder, *words)
    assert status == 1
    assert reason in found["reason"]
    assert found["groups"] == [GROUP]


def test_the_longest_context_is_what_an_engine_would_plan(check, small_model):
    folder, _ = small_model
    _, found = check(folder, "--kv-cache-memory-bytes", str(128 * 32))
    assert found["max_context"] == 32
    assert found["kv_cache_bytes"] == 128 * 32


def test_a_folder_without_a_model_is_an_error(tmp_path, capsys):
    assert main(["models", "check", str(tmp_path), *FLAGS]) == 1
    assert "has no config.json" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["check"], ["check", "x", "--no-such-flag"], ["judge"]])
def test_wrong_usage(words, capsys):
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main(["models", *words]))
    assert ended.value.code == (1 if words == ["check"] else 2)
    assert capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 kB"), (16_060_522_496, "16.1 GB"), (2 * 10**15, "2e+03 TB")],
)  # fmt: skip
def test_sizes(number, text):
    assert size(number) == text


def test_part_that_the_model_type_lacks_is_named(check, write_config):
    status, found = check(write_config(text_config={"vocab_size": 96}))
    assert status == 1
    assert "the model type 'llama' does not have" in found["reason"]
