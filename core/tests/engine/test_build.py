"""Building an engine from the plan: order, checks, and attribution of errors (EC-1 to EC-5, EC-10, KV-1)."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from tenonry.config import PluginChoice
from tenonry.engine import build
from tenonry.errors import ConfigError, ModelError, PluginError, PluginFault
from tenonry.gpus import VARIABLE
from tenonry.interfaces.kv_connector import KVConnectorRole
from tenonry.plugin import Point
from tenonry.version import __version__
from tenonry_testkit.fakes import FakeWorker
from tenonry_testkit.kernel.engine import FAKES, make_core
from tenonry_testkit.kernel.faulty import CALLS, FaultyConnector


def faulty(**parts: Any) -> dict[str, Any]:
    fields = {"connector": "kv_connector"}
    return {
        fields.get(kind, kind): {
            "name": f"tenonry_testkit.kernel.faulty:Faulty{kind.title()}",
            "options": options,
        }
        for kind, options in parts.items()
    }


DISTANT = "tenonry_testkit.kernel.launch_roles:DistantExecutor"


@pytest.fixture(autouse=True)
def _fresh_calls() -> None:
    CALLS.clear()
    FaultyConnector.contexts.clear()


def test_version_and_configuration_are_logged(caplog):
    """EC-1."""
    with caplog.at_level(logging.INFO, logger="tenonry"):
        make_core(
            index=3,
            seed=7,
            worker={"name": f"{FAKES}:FakeWorker", "options": {"fail_step_token": 77}},
        )
    line = next(
        record.getMessage()
        for record in caplog.records
        if "engine 3 of tenonry" in record.getMessage()
    )
    assert f"tenonry {__version__}" in line
    assert '"seed":7' in line
    assert '{"name":"tenonry_testkit.fakes:FakeWorker"}' in line
    assert "77" not in line  # another option might be a password


def test_parts_are_built_in_order():
    """EC-2: executor, its failure callback, model, KV cache, scheduler."""
    make_core(**faulty(executor={}, worker={}), num_gpu_blocks_override=40)
    assert CALLS == [
        "FaultyExecutor.on_failure", "FaultyExecutor.start", "FaultyWorker.load", "FaultyExecutor.kv_cache_groups",
        "FaultyExecutor.available_memory", "FaultyExecutor.initialize", "num_blocks=40", "FaultyWorker.initialize_cache",  # noqa: E501
    ]  # fmt: skip


def test_the_failure_callback_reaches_the_engine():
    """EC-2, IO-1."""
    heard: list[str] = []
    core = make_core(on_failure=heard.append)
    core.executor.fail("rank 1 died")
    assert heard == ["rank 1 died"]


def test_without_a_callback_a_failure_is_logged(caplog):
    make_core().executor.fail("rank 1 died")
    assert "the executor failed: rank 1 died" in caplog.text


@pytest.mark.parametrize(
    ("executor", "values", "budget"),
    [
        ("tenonry_testkit.fakes:InstantExecutor", {}, 512 + 4),
        (DISTANT, {}, 2048),
        (DISTANT, {"device": "cpu"}, 512 + 4),
        (DISTANT, {"max_num_batched_tokens": 9}, 9),
    ],
)
def test_nodes_that_cannot_be_inspected_may_have_gpus(monkeypatch, executor, values, budget):
    monkeypatch.setenv(VARIABLE, "")
    core = make_core(executor=executor, **{"max_num_batched_tokens": None, **values})
    assert core.config.step_token_budget == budget


class TestCache:
    """EC-5."""

    def test_ranks_must_report_groups_and_memory(self):
        with pytest.raises(ConfigError, match="1 ranks reported KV groups, 2 reported memory"):
            make_core(**faulty(executor={"ranks": 2}))

    def test_the_decided_cache_reaches_scheduler_limits_and_log(self, caplog, monkeypatch):
        """EC-10, too: how many steps may be in flight."""
        monkeypatch.setattr(build, "time", SimpleNamespace(monotonic=iter([10.0, 12.5]).__next__))
        executor = {"name": "tenonry_testkit.fakes:InstantExecutor", "options": {"depth": 3}}
        with caplog.at_level(logging.INFO, logger="tenonry"):
            core = make_core(
                executor=executor, num_gpu_blocks_override=8, block_size=4, max_model_len=None
            )
        assert core.kv_cache.num_blocks == 8
        assert core.kv_cache.block_size == 4
        assert core.limits.max_model_len == 32
        assert core.scheduler.context.kv_cache is core.kv_cache
        assert core.scheduler.context.max_model_len == 32
        assert (
            "KV cache: 8 blocks of 4 tokens, longest sequence 32, steps in flight 3; caches and warm-up took 2.50 s"
        ) in caplog.text

    def test_a_cache_below_the_models_length_is_said(self, caplog):
        make_core(num_gpu_blocks_override=8, block_size=4, max_model_len=None)
        assert "the model handles 2048 tokens, but the KV cache holds 32" in caplog.text
        caplog.clear()
        make_core(max_model_len=64)  # as the user wished
        assert "the model handles" not in caplog.text

    @pytest.mark.parametrize(("wanted", "longest"), [(None, 2048), (64, 64), (4096, 2048)])
    def test_the_longest_sequence_is_the_smaller_of_wish_and_model(self, wanted, longest):
        core = make_core(max_model_len=wanted, num_gpu_blocks_override=2048)
        context: Any = core.executor.context  # type: ignore[attr-defined]
        assert context.max_model_len == longest


class TestScheduler:
    def test_it_gets_its_context(self):
        """EC-3, EC-4."""
        core = make_core(
            index=5,
            executor={"name": "tenonry_testkit.fakes:NoFeedbackExecutor", "options": {"depth": 2}},
            **faulty(scheduler={"refuse": "x"}),
        )
        context = core.scheduler.context
        assert context.engine_index == 5
        assert context.max_concurrent_steps == 2
        assert context.feeds_back_tokens is False
        assert context.plugin_name == "tenonry_testkit.kernel.faulty:FaultyScheduler"
        assert context.options.refuse == "x"
        assert context.clock is core.clock
        assert context.kv_connector is None

    def test_no_scheduler_is_a_second_class_one(self, caplog):
        """EC-3: the interface is public, so another scheduler is no reason for a warning."""
        make_core(**faulty(scheduler={}))
        assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []

    def test_it_can_resolve_points_of_its_own(self, tmp_path):
        path = tmp_path / "policy.py"
        path.write_text("class Mine: pass", "utf-8")
        resolve = make_core().scheduler.context.resolve
        assert resolve is not None
        found, record = resolve(Point("acme.samplers"), PluginChoice(name=f"{path}:Mine"))
        assert found.__name__ == "Mine"
        assert record.kind == "sampler"


class TestConnector:
    """KV-1."""

    def test_there_is_none_unless_one_is_chosen(self):
        assert make_core().kv_connector is None

    @pytest.mark.parametrize("index", [0, 3])
    def test_the_scheduler_half_is_known_to_engine_and_scheduler(self, index):
        core = make_core(index=index, **faulty(connector={}))
        scheduler_half, worker_half = sorted(
            FaultyConnector.contexts, key=lambda context: context.role.value
        )
        assert core.scheduler.context.kv_connector is core.kv_connector
        assert core.kv_connector is not None
        assert core.kv_connector.context is scheduler_half
        assert scheduler_half.role is KVConnectorRole.SCHEDULER
        assert worker_half.role is KVConnectorRole.WORKER
        assert scheduler_half.kv_cache == core.kv_cache

    def test_its_engine_id_is_one_per_engine_and_equal_in_both_halves(self):
        for index in (0, 1):
            make_core(index=index, **faulty(connector={}))
        ids = [context.engine_id for context in FaultyConnector.contexts]
        assert len(ids) == 4
        assert [name.rpartition("_")[2] for name in ids] == ["dp0", "dp0", "dp1", "dp1"]
        assert len(set(ids)) == 2


class TestFaults:
    """A part that fails stops the start, is named, and leaves nothing running."""

    def test_a_worker_that_moves_no_blocks_is_refused_with_one(self):
        """Otherwise promised blocks would never arrive, and kept ones would never be released."""
        with pytest.raises(
            ConfigError,
            match=r"kv_connector=tenonry_testkit.kernel.faulty:.* worker 'tenonry_testkit.kernel.faulty:Still.* lacks",
        ):
            make_core(**faulty(connector={}), worker="tenonry_testkit.kernel.faulty:StillWorker")
        assert CALLS == [], "nothing was started"

    @pytest.mark.parametrize("kind", ["executor", "scheduler", "connector"])
    def test_a_constructor_that_raises_names_its_plugin(self, kind):
        with pytest.raises(PluginFault, match="constructor failed on purpose") as caught:
            make_core(**faulty(**{kind: {"fail": "constructor"}}))
        assert caught.value.plugin == f"tenonry_testkit.kernel.faulty:Faulty{kind.title()}"
        assert caught.value.call == "its constructor"

    @pytest.mark.parametrize(
        "method", ["start", "initialize", "kv_cache_groups", "available_memory", "on_failure"]
    )
    def test_an_executor_that_raises_is_shut_down(self, method):
        with pytest.raises(
            PluginFault, match=f"RuntimeError: {method} failed on purpose"
        ) as caught:
            make_core(**faulty(executor={"fail": method}))
        assert caught.value.plugin == "tenonry_testkit.kernel.faulty:FaultyExecutor"
        assert CALLS[-1] == "FaultyExecutor.shutdown"

    @pytest.mark.parametrize("method", ["load", "initialize_cache"])
    def test_a_worker_that_raises_is_named_and_shut_down(self, method):
        with pytest.raises(
            PluginFault,
            match=f"plugin tenonry_testkit.kernel.faulty:FaultyWorker .*: {method} failed on purpose",
        ):
            make_core(**faulty(executor={}, worker={"fail": method}))
        assert CALLS[-2:] == ["FaultyExecutor.shutdown", "FaultyWorker.shutdown"]

    @pytest.mark.parametrize("kind", ["scheduler", "connector"])
    def test_a_later_part_that_fails_stops_the_executor(self, kind):
        with pytest.raises(PluginFault):
            make_core(**faulty(executor={}, **{kind: {"fail": "constructor"}}))
        assert "FaultyExecutor.shutdown" in CALLS

    def test_a_scheduler_that_fails_stops_the_connector_too(self):
        with pytest.raises(PluginFault):
            make_core(**faulty(executor={}, connector={}, scheduler={"fail": "constructor"}))
        halves = 2
        assert CALLS.count("FaultyConnector.shutdown") == halves

    def test_a_fault_while_stopping_does_not_hide_the_first(self, caplog):
        with pytest.raises(PluginFault, match="start failed on purpose"):
            make_core(**faulty(executor={"fail": "start shutdown"}))
        assert "shutting down FaultyExecutor failed" in caplog.text

    def test_an_error_of_ours_says_enough_already(self):
        with pytest.raises(ModelError, match=r"^no weights$"):
            make_core(
                worker={
                    "name": "tenonry_testkit.fakes:FakeWorker",
                    "options": {"fail_load": "no weights"},
                }
            )

    def test_bad_options_are_refused_before_anything_starts(self):
        with pytest.raises(PluginError, match=r"options of scheduler .*unknown setting 'refusee'"):
            make_core(**faulty(executor={}, scheduler={"refusee": "x"}))
        assert CALLS == []


NO_ROUNDS = {
    "the user": {"max_round_tokens": 1},
    "steps in flight": {
        "executor": {"name": "tenonry_testkit.fakes:InstantExecutor", "options": {"depth": 2}}
    },
    "no feedback": {"executor": "tenonry_testkit.fakes:NoFeedbackExecutor"},
    "a connector": faulty(connector={}),
    "lockstep": {"facts": {"needs_lockstep": True}},
    "the worker": {"worker": f"{__name__}:WithoutRounds"},
}


class WithoutRounds(FakeWorker):
    capabilities = FakeWorker.capabilities - {"rounds"}


@pytest.mark.parametrize("why", NO_ROUNDS)
def test_rounds_are_off_where_they_cannot_be_right(why):
    values = {"max_round_tokens": 5, **NO_ROUNDS[why]}
    assert make_core(**values).scheduler.context.max_round_tokens == 1


def test_rounds_are_as_long_as_the_user_allows():
    assert make_core(max_round_tokens=5).scheduler.context.max_round_tokens == 5


@pytest.mark.parametrize(("depth", "expected"), [(1, 1), (2, 2), (3, 3)])
def test_the_depth_is_the_executors(depth, expected):
    """EC-10."""
    made = make_core(
        executor={"name": "tenonry_testkit.fakes:InstantExecutor", "options": {"depth": depth}}
    )
    assert made.depth == expected
