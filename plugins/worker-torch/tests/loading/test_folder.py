from __future__ import annotations

import json

import pytest
import torch
import worker_families

from tenonry.errors import ModelError
from tenonry_worker_torch.loading.load import load_model

CPU = torch.device("cpu")


def load(folder, **options):
    return load_model(
        str(folder),
        **({"load_format": "auto", "dtype": "auto", "device": CPU, "seed": 0} | options),
    )


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    worker_families.save("llama", folder)
    return folder


def copy(source, target, *names):
    for name in names:
        (target / name).write_bytes((source / name).read_bytes())
    return target


def test_a_folder_loads_with_its_own_weights(llama):
    model = load(llama)
    wanted = worker_families.build("llama").state_dict()
    assert all(torch.equal(weight, wanted[name]) for name, weight in model.state_dict().items())
    assert not model.training
    assert not any(weight.requires_grad for weight in model.parameters())


def test_dtype_is_converted_when_asked(llama):
    assert load(llama, dtype="bfloat16").dtype == torch.bfloat16


def test_dummy_weights_need_no_file_and_follow_the_seed(llama, tmp_path):
    copy(llama, tmp_path, "config.json")
    torch.manual_seed(1)
    before = torch.rand(1)
    torch.manual_seed(1)
    first, same, other = (load(tmp_path, load_format="dummy", seed=seed) for seed in (5, 5, 6))
    assert torch.equal(torch.rand(1), before)  # the caller's random state is untouched
    name = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(first.state_dict()[name], same.state_dict()[name])
    assert not torch.equal(first.state_dict()[name], other.state_dict()[name])


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(ModelError, match="nowhere does not exist"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickle_weights_are_refused_by_name(llama, tmp_path, name):
    copy(llama, tmp_path, "config.json")
    (tmp_path / name).write_bytes(b"whatever")
    with pytest.raises(ModelError, match=rf"{name}.*safetensors"):
        load(tmp_path)


def test_a_folder_without_weights_says_what_to_do(llama, tmp_path):
    copy(llama, tmp_path, "config.json")
    with pytest.raises(ModelError, match=r"no \*\.safetensors file; --load-format dummy"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("text", "reason"), [("{", "not valid JSON"), ("[]", "JSON object, not a list")]
)
def test_a_broken_config_is_named(tmp_path, text, reason):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=rf"config.json.*{reason}"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"num_hidden_layers": "3"}, "num_hidden_layers is '3', which is no number"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0, which is not from 1"),
        (
            {"hidden_act": "nope"},
            "hidden_act is .nope., which the installed transformers does not know",
        ),
        ({"dtype": "nope"}, "config.json does not describe a model"),
        ({"quantization_config": "x"}, "quantization_config is 'x', no object"),
        ({"num_key_value_heads": 4}, "do not fit LlamaForCausalLM: tensor .*k_proj"),
    ],
)
def test_a_config_with_impossible_values_is_named(llama, tmp_path, changed, reason):
    copy(llama, tmp_path, "config.json", "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changed))
    with pytest.raises(ModelError, match=reason):
        load(tmp_path)


def test_broken_weights_are_a_model_error(llama, tmp_path):
    copy(llama, tmp_path, "config.json")
    (tmp_path / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0nonsense")
    with pytest.raises(ModelError, match=r"model\.safetensors is not a safetensors file"):
        load(tmp_path)


def test_missing_weights_are_not_made_up(llama, tmp_path):
    from safetensors.torch import load_file, save_file

    copy(llama, tmp_path, "config.json")
    weights = load_file(llama / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ModelError, match=r"1 of the tensors .* such as model\.layers\.1\.mlp\.up_proj\.weight"
    ):
        load(tmp_path)


def test_code_that_comes_with_a_model_is_never_run(llama, tmp_path):
    copy(llama, tmp_path, "config.json", "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {
        "model_type": "mine",
        "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ModelError, match=r"evil\.Model\), which is never run"):
        load(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_checkpoints_of_a_format_that_is_not_known_are_refused(llama, tmp_path):
    copy(llama, tmp_path, "config.json", "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps(config | {"quantization_config": {"quant_method": "of-nobody"}})
    )
    with pytest.raises(ModelError, match=r"quantised \(of-nobody\)"):
        load(tmp_path)


def test_nothing_is_printed_without_a_terminal(llama, capfd):
    load(llama)
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""
