"""The configuration: bounds, sources and their precedence, and errors that name the remedy."""

from __future__ import annotations

import json
import math
from typing import Any, ClassVar

import pytest
from pydantic import ValidationError

from tenonry.config import EngineConfig, PluginChoice, Settings, read, setting
from tenonry.config.sources import make_config
from tenonry.errors import ConfigError
from tenonry.gpus import VARIABLE


def config(**values: Any) -> EngineConfig:
    return read(EngineConfig, {"model": "m", **values}, EngineConfig.model_fields)


class TestBounds:
    NUMBERS: ClassVar[dict[str, tuple[list[Any], list[Any]]]] = {
        "seed": ([0, 1 << 40], [-1, 0.5]),
        "max_model_len": ([1, None], [0, -1, 1.5]),
        "max_images": ([0, 4], [-1, None]),
        "max_encoder_tokens": ([0, 1 << 20], [-1, None]),
        "max_num_seqs": ([1, 65536], [0, 65537, None]),
        "max_num_batched_tokens": ([256, 1 << 24, None], [0, (1 << 24) + 1]),
        "block_size": ([1, 4096, None], [0, 4097]),
        "num_gpu_blocks_override": ([1, None], [0]),
        "gpu_memory_utilization": ([1, 0.01], [0, 1.01, math.nan, math.inf]),
        "kv_cache_memory_bytes": ([1, None], [0]),
        "state_cache_memory_bytes": ([0, None], [-1]),
        "max_num_queued_reqs": ([0, None], [-1]),
        "max_round_tokens": ([1, 64], [0, 65, None]),
        "max_loras": ([0, 1024], [-1, 1025, None]),
        "tensor_parallel_size": ([1, 1024], [0, 1025]),
        "pipeline_parallel_size": ([1, 1024], [0, 1025]),
        "data_parallel_size": ([1, 65536], [0, 65537]),
        "data_parallel_size_local": ([0, 65536, None], [-1, 65537]),
        "data_parallel_start_rank": ([0, 65535], [-1, 65536]),
        "data_parallel_rank": ([0, 65535, None], [-1, 65536]),
        "data_parallel_rpc_port": ([0, 65535], [-1, 65536]),
        "data_parallel_sync_steps": ([1, 65536], [0, 65537]),
        "stream_interval": ([1, 1000], [0, 1.5, None]),
        "output_chunk_size": ([1, 4096], [0, 1.5, None]),
        "step_timeout": ([0.1, 86400], [0, 86401, math.nan]),
        "shutdown_timeout": ([0, 86400], [-0.1, 86401, math.nan]),
        "start_timeout": ([0.1, 86400], [0, 86401, math.inf]),
    }

    def test_every_numeric_field_has_a_bound_below_and_is_tested(self):
        numeric = {
            name
            for name, field in EngineConfig.model_fields.items()
            if field.annotation in (int, float, int | None)
        }
        assert numeric == set(self.NUMBERS)

    @pytest.mark.parametrize("field", NUMBERS)
    def test_the_edge_is_accepted(self, field):
        for value in self.NUMBERS[field][0]:
            assert getattr(config(**{field: value}), field) == value

    @pytest.mark.parametrize("field", NUMBERS)
    def test_what_lies_outside_is_refused_by_path_and_value(self, field):
        for value in self.NUMBERS[field][1]:
            with pytest.raises(ConfigError, match=rf"^{field}={value}: "):
                config(**{field: value})

    @pytest.mark.parametrize(
        ("field", "value"),
        [("dtype", "int8"), ("load_format", "pt"), ("device", "tpu"), ("device", "cuda:x"), ("model", ""), ("model", 5),
         ("executor", ""), ("executor", "x" * 513), ("executor", {"options": {}}),
         ("scheduler", {"name": "x", "option": {}}), ("stat_loggers", [5]), ("plugins", {"allowed": []})],
    )  # fmt: skip
    def test_texts_and_plugins_are_checked(self, field, value):
        with pytest.raises(ConfigError, match=field):
            config(**{field: value})

    def test_every_problem_is_named(self):
        with pytest.raises(ConfigError) as caught:
            config(max_num_seqs=0, seed=-1, device="tpu")
        assert all(
            field in str(caught.value) for field in ("max_num_seqs=0", "seed=-1", "device='tpu'")
        )

    def test_a_step_must_hold_one_token_per_sequence(self):
        with pytest.raises(ConfigError, match=r"max_num_batched_tokens=8 is below max_num_seqs=9"):
            config(max_num_batched_tokens=8, max_num_seqs=9)

    def test_without_chunks_a_step_must_hold_the_longest_prompt(self):
        values = {"max_num_batched_tokens": 256, "max_model_len": 257}
        assert config(**values).enable_chunked_prefill
        with pytest.raises(
            ConfigError, match=r"max_num_batched_tokens=256 is below max_model_len=257"
        ):
            config(**values, enable_chunked_prefill=False)

    @pytest.mark.parametrize(
        ("given", "name"),
        [("half", "float16"), ("float", "float32"), ("torch.bfloat16", "bfloat16")],
    )
    def test_data_types_have_the_names_of_torch(self, given, name):
        assert EngineConfig(model="m", dtype=given).dtype == name
        assert EngineConfig(model="m").replaced(dtype=given).dtype == name

    def test_it_is_frozen(self):
        with pytest.raises(ValidationError):
            config().seed = 1  # type: ignore[misc]


class TestDerived:
    @pytest.mark.parametrize(
        ("device", "seqs", "tokens", "budget"),
        [
            ("cuda", 1, None, 2048),
            ("cuda", 4096, None, 4096),
            ("cuda", 4, 16, 16),
            ("cpu", 1, None, 513),
            ("cpu", 4096, None, 4608),
            ("cpu", 4, 16, 16),
        ],
    )
    def test_the_token_budget_has_a_default(self, device, seqs, tokens, budget):
        """A step on a CPU is short, however long prompts are."""
        made = config(device=device, max_num_seqs=seqs, max_num_batched_tokens=tokens)
        assert made.step_token_budget == budget

    @pytest.mark.parametrize("values", [{"max_images": 1}, {"enable_chunked_prefill": False}])
    def test_what_cannot_be_split_fits_into_a_step_on_a_cpu_too(self, values):
        assert config(device="cpu", **values).step_token_budget == 2048

    @pytest.mark.parametrize(
        ("visible", "values", "expected"),
        [
            ("", {}, False),
            ("", {"executor": "mp", "tensor_parallel_size": 2}, False),
            ("0,1", {}, True),
            ("0,1", {"device": "cpu"}, False),
            ("", {"device": "cuda:1"}, True),
        ],
    )
    def test_gpus_are_those_of_this_node(self, monkeypatch, visible, values, expected):
        monkeypatch.setenv(VARIABLE, visible)
        assert config(**values).may_use_gpus is expected

    def test_world_size_counts_the_ranks_of_one_engine(self):
        assert (
            config(
                tensor_parallel_size=2, pipeline_parallel_size=3, data_parallel_size=5
            ).world_size
            == 6
        )


class TestPlugins:
    """A plugin field takes a name, or a name and options."""

    def test_a_name_and_a_mapping_mean_the_same(self):
        assert (
            config(scheduler="static").scheduler == config(scheduler={"name": "static"}).scheduler
        )
        assert config(scheduler={"name": "a:B", "options": {"x": 1}}).scheduler == PluginChoice(
            name="a:B", options={"x": 1}
        )

    @pytest.mark.parametrize("field", ["io_processor", "kv_connector"])
    @pytest.mark.parametrize("nothing", ["none", None])
    def test_what_may_be_absent_can_be_left_out(self, field, nothing):
        assert getattr(config(**{field: nothing}), field) is None

    @pytest.mark.parametrize("given", ["console", ["console"], ("console",), [{"name": "console"}]])
    def test_stat_loggers_may_be_one_or_many(self, given):
        assert config(stat_loggers=given).stat_loggers == (PluginChoice(name="console"),)

    def test_stat_loggers_may_be_a_list_in_one_text(self):
        names = [choice.name for choice in config(stat_loggers="console, prometheus").stat_loggers]
        assert names == ["console", "prometheus"]

    def test_a_configuration_survives_the_way_to_a_child(self):
        sent = config(
            scheduler={"name": "x", "options": {"deep": {"list": [1, "a", None, 0.5]}}},
            stat_loggers=["console"],
            served_model_name=["a", "b"],
            plugins={"allow": ["one"]},
            max_num_queued_reqs=None,
        )
        assert EngineConfig.model_validate_json(sent.model_dump_json()) == sent


class TestDescription:
    def test_says_what_differs_and_keeps_options_to_itself(self):
        secret = {"name": "mine:X", "options": {"password": "hunter2"}}
        config = EngineConfig(
            model="m",
            max_num_seqs=3,
            executor=secret,
            kv_connector=secret,
            io_processor="none",
            stat_loggers=[secret, "b"],
        )
        described = json.loads(config.describe())
        assert described == {
            "model": "m", "max_num_seqs": 3, "executor": {"name": "mine:X"}, "kv_connector": {"name": "mine:X"},
            "io_processor": None, "stat_loggers": [{"name": "mine:X"}, {"name": "b"}],
        }  # fmt: skip


class Lanes(Settings):
    num_lanes: int = setting(1, ge=1)
    lane_key: str = setting("", repr=False)


class TestSections:
    def test_a_plugin_reads_its_own_keys(self):
        assert config(num_lanes="2k", others=3).section(Lanes) == Lanes(num_lanes=2000)
        assert config().section(Lanes) == Lanes()

    def test_a_bad_value_is_named_and_a_secret_one_is_not_shown(self):
        with pytest.raises(ConfigError, match=r"^num_lanes=0: .*; lane_key: .*valid string$"):
            config(num_lanes=0, lane_key=5).section(Lanes)

    def test_it_survives_the_way_to_a_child(self):
        sent = EngineConfig.model_validate_json(config(num_lanes=2).model_dump_json())
        assert sent.section(Lanes).num_lanes == 2

    def test_a_log_shows_no_secrets(self):
        made = config(num_lanes=2, lane_key="hunter2")
        described = json.loads(made.describe(("lane_key",)))
        assert described == {"model": "m", "num_lanes": 2}


class TestUnknownKeys:
    def test_a_further_key_is_left_to_the_plugins(self):
        assert config(zzzz=1).model_extra == {"zzzz": 1}

    def test_a_nested_key_is_named_by_its_path(self):
        with pytest.raises(ConfigError, match=r"^unknown setting 'plugins\.alow'$"):
            config(plugins={"alow": ["x"]})
        with pytest.raises(ConfigError, match=r"^unknown setting 'stat_loggers\.0\.nam'"):
            config(stat_loggers=[{"name": "a", "nam": "b"}])

    def test_the_model_is_required(self, monkeypatch):
        monkeypatch.delenv("TENONRY_MODEL", raising=False)
        for values in ({}, {"model": None}):
            with pytest.raises(ConfigError, match="setting 'model' is missing"):
                make_config(values)
