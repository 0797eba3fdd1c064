"""Models and their settings from flags, variables and the file of `--config`."""

from __future__ import annotations

import pytest

from tenonry.cli import make_parser
from tenonry.config import EngineConfig
from tenonry.errors import ConfigError
from tenonry_openai_server.hosting.settings import declared_adapters, hosted_models


@pytest.fixture
def read(tmp_path):
    def read(*words, file=""):
        if file:
            path = tmp_path / "models.yaml"
            path.write_text(file)
            words = (*words, "--config", str(path))
        return hosted_models(make_parser("serve")[0].parse_args(words))

    return read


@pytest.mark.parametrize(
    "words", [("demo",), ("--model", "demo"), (), ("demo", "--max-num-seqs", "4")]
)
def test_one_model_has_no_host(read, words):
    assert read(*words) is None


def test_models_of_the_command_line_share_the_flags(read):
    hosted = read("demo", "smollm2", "--max-num-seqs", "4", "--port", "0")
    assert [spec.names for spec in hosted.specs] == [("demo",), ("smollm2",)]
    assert [spec.config.model for spec in hosted.specs] == ["demo", "smollm2"]
    assert {spec.config.max_num_seqs for spec in hosted.specs} == {4}
    assert hosted.settings.port == 0


def test_a_models_own_settings_win_over_the_common_ones(read):
    file = """
    max-num-seqs: 8
    pin-model: small
    models:
      small: {model: demo, max-num-seqs: 2, output_parser: none}
      demo:
    """
    hosted = read("--max-num-seqs", "4", file=file)
    small, demo = hosted.specs
    assert (small.names, small.config.model, small.is_pinned) == (("small",), "demo", True)
    assert (small.config.max_num_seqs, demo.config.max_num_seqs) == (2, 4)
    assert (small.settings.output_parser, demo.settings.output_parser) == ("none", "auto")
    assert small.config.process_note == "small"


def test_the_command_line_chooses_among_the_models_of_the_file(read):
    hosted = read("b", file="models: {a: {model: demo}, b: {model: demo, dtype: float32}}")
    assert [spec.names for spec in hosted.specs] == [("b",)]
    assert hosted.specs[0].config.dtype == "float32"


def test_a_list_of_names_is_enough(read):
    assert [spec.names for spec in read(file="models: [demo, smollm2]").specs] == [
        ("demo",),
        ("smollm2",),
    ]


def test_a_host_of_one_model_loads_it_on_request(read):
    assert [spec.names for spec in read("demo", "--model-idle-timeout", "60").specs] == [("demo",)]


def test_a_model_may_have_several_names(read):
    file = "models: {a: {model: demo, served_model_name: [x, y]}, b: {model: demo}}"
    assert [spec.names for spec in read(file=file).specs] == [("x", "y"), ("b",)]


def test_adapters_are_pairs_or_objects_and_others_are_left_to_the_worker():
    modules = ["a=/x", '{"name": "b", "path": "/y", "base_model_name": "m"}', "{not json", "c"]
    config = EngineConfig(model="m", lora_modules=modules)
    assert declared_adapters(config) == {"a": "/x", "b": "/y"}


@pytest.mark.parametrize(
    ("words", "file", "message"),
    [
        (("demo", "demo"), "", "the model name 'demo' is given 2 times; give each model and adapter a name of its own"),
        (("--model-idle-timeout", "60"), "", "no model is named; type `tenonry serve MODEL …`"),
        (("a", "b", "--pin-model", "c"), "", "pin_model=c: no such model is served; served: a, b"),
        (("a", "b", "--api-server-count", "2"), "", "api_server_count=2: a server of several models has none"),
        (("a", "b", "--headless"), "", "headless=True: a server of several models has none"),
        (("a", "b", "--data-parallel-rank", "1"), "", "data_parallel_rank=1: a server of several models has none"),
        (("a", "b", "--prefill-engines", "1"), "", "prefill_engines=1: a server of several models has none"),
        ((), "models: {a: {data_parallel_rank: 0}}", "model 'a': data_parallel_rank=0: a server of several"),
        ((), "models: {a: {max_loras: 1, lora_modules: [b=/x]}, b: }", "the model name 'b' is given 2 times"),
        (
            (),
            "{max_loras: 1, lora_modules: ['{\"name\": \"poet\", \"path\": \"/x\"}'], models: {a: , b: }}",
            "the model name 'poet' is given 2 times",
        ),
        (("a", "b", "--served-model-name", "x"), "", r"served_model_name=\['x'\] names one of 2 models"),
        (("a", "b", "--pin-model", "a", "--max-loaded-models", "1"), "", "the others could never be loaded; give 2"),
        ((), "models: {a: {port: 1}}", "models.a.port is a setting of the whole server"),
        ((), "models: {a: {max_num_seqs: 0}}", "model 'a': max_num_seqs=0"),
        ((), "models: {a: 3}", "'a' must hold a mapping of settings, not a int"),
        ((), "models: 3", "models=3"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_used_are_refused(read, words, file, message):
    with pytest.raises(ConfigError, match=message):
        read(*words, file=file)
