"""Reactions of an engine core when its executor, worker or scheduler fails, stalls or cannot be shut down."""

from __future__ import annotations

import re
import signal
import sys
from typing import Any

import pytest

from tenonry.engine.core import STALL_S, EngineCore
from tenonry.errors import ContractViolation, PluginFault
from tenonry.outputs import FinishReason
from tenonry_testkit.fakes import VirtualClock
from tenonry_testkit.kernel.engine import Inbox, expected, make_core, request
from tenonry_testkit.kernel.faulty import CALLS, SCHEDULER_METHODS


def faulty(**parts: Any) -> dict[str, Any]:
    """Parts of `tenonry_testkit.kernel.faulty`, by kind, with their options."""
    return {
        kind: {"name": f"tenonry_testkit.kernel.faulty:Faulty{kind.title()}", "options": options}
        for kind, options in parts.items()
    }


class TestWorkerFaults:
    def test_a_row_that_fails_ends_alone(self):
        """Fault 10: NaN logits of one row."""
        core = make_core()
        core.executor.worker.fail_handles = {2: 1}
        for handle in (1, 2, 3):
            core.add_request(request(handle, [handle] * 3))
        inbox = Inbox().run(core)
        assert inbox.finished[2].reason is FinishReason.ERROR
        assert inbox.finished[2].error == "the model produced NaN logits for this request"
        assert 2 not in inbox.tokens
        for handle in (1, 3):
            assert inbox.tokens[handle] == expected(core, request(handle, [handle] * 3))

    @pytest.mark.parametrize("where", ["at launch", "in the result"])
    def test_an_exception_ends_the_engine_with_the_state_in_the_log(self, where, caplog):
        """EC-8."""
        parts = (
            {"executor": {"fail": "execute_model"}}
            if where == "at launch"
            else {"worker": {"fail": "execute_model"}}
        )
        core = make_core(**faulty(**parts))
        core.add_request(request(1))
        with pytest.raises(
            PluginFault,
            match=r"failed in execute_model: RuntimeError: execute_model failed on purpose",
        ):
            Inbox().run(core)
        (text,) = [line for line in caplog.messages if line.startswith("step ")]
        assert text.startswith(
            "step 0 failed: 1 rows, 3 tokens, 1 new, 0 gone; stats SchedulerStats(num_running=1, num_waiting=0"
        )
        assert f"settings {core.config.describe()}; " in text
        assert text.endswith(
            "rows [0] compute [3] tokens; new (row, handle, tokens known, computed, output) [(0, 1, 3, 0, 0)]"
        )

    def test_the_log_of_a_failed_step_is_bounded_and_shows_no_prompt(self, caplog):
        """EC-8."""
        sizes = {"max_num_seqs": 64, "max_num_batched_tokens": 256}
        core = make_core(**sizes, **faulty(worker={"fail": "execute_model"}))
        for handle in range(1, 61):
            core.add_request(request(handle, [417, 418]))
        with pytest.raises(PluginFault):
            core.step()
        (text,) = [line for line in caplog.messages if line.startswith("step ")]
        assert text.startswith("step 0 failed: 60 rows, 120 tokens, 60 new")
        assert "(31, 32, 2, 0, 0)]" in text
        assert "417" not in text

    def test_the_culprit_and_the_cause_are_named(self):
        core = make_core(**faulty(worker={"fail": "execute_model"}))
        core.add_request(request(1))
        with pytest.raises(PluginFault) as caught:
            core.step()
        assert caught.value.plugin == "tenonry_testkit.kernel.faulty:FaultyWorker"
        assert caught.value.call == "execute_model"
        assert isinstance(caught.value.__cause__, RuntimeError)

    def test_a_fault_of_the_executor_is_its_own(self):
        core = make_core(**faulty(executor={"fail": "execute_model"}))
        core.add_request(request(1))
        with pytest.raises(PluginFault) as caught:
            core.step()
        assert caught.value.plugin == "tenonry_testkit.kernel.faulty:FaultyExecutor"

    def test_a_fault_of_a_rank_in_another_process_is_the_workers(self, monkeypatch):
        """Executors raise it again with the attribute `plugin`."""
        core = make_core()
        core.add_request(request(1))
        error = RuntimeError("worker 0.1: no memory")
        error.plugin = ""  # type: ignore[attr-defined]

        def execute_model(self: Any, output: Any) -> None:
            raise error

        monkeypatch.setattr(type(core.executor), "execute_model", execute_model)
        with pytest.raises(PluginFault) as caught:
            core.step()
        assert caught.value.plugin == core.plan.get("worker").name

    @pytest.mark.parametrize("also", ["make_stats", "get_request_counts"])
    def test_a_scheduler_that_fails_too_does_not_hide_the_cause(self, also):
        """EC-8: the dump is a help, never a second fault."""
        core = make_core(**faulty(worker={"fail": "execute_model"}))
        core.add_request(request(1))
        core.scheduler.fail = also  # type: ignore[attr-defined]
        setattr(core.scheduler, also, lambda: 1 / 0)
        with pytest.raises(PluginFault, match="execute_model failed on purpose"):
            core.step()

    def test_an_interrupt_is_no_fault(self, monkeypatch, caplog):
        """EC-8: Ctrl-C reaches the caller as it is."""
        monkeypatch.setattr(signal, "getsignal", lambda _: signal.default_int_handler)
        core = failing_with(KeyboardInterrupt(), monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            core.step()
        assert "step 0 failed" not in caplog.text

    @pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(0), GeneratorExit()])
    def test_what_ends_processes_is_a_fault_of_the_plugin(self, error, monkeypatch):
        """In an engine's process Ctrl-C does not raise, so the plugin raised it."""
        monkeypatch.setattr(signal, "getsignal", lambda _: signal.SIG_IGN)
        core = failing_with(error, monkeypatch)
        with pytest.raises(PluginFault, match=f"execute_model: {type(error).__name__}"):
            core.step()

    @pytest.mark.parametrize("call", ["schedule", "has_requests", "update_from_output"])
    def test_a_scheduler_that_exits_is_named(self, call, monkeypatch):
        core = make_core()
        core.add_request(request(1))

        def leave(*_: object) -> None:
            sys.exit(0)

        monkeypatch.setattr(core.scheduler, call, leave)
        with pytest.raises(PluginFault, match=f"failed in {call}: SystemExit: 0") as caught:
            Inbox().run(core)
        assert caught.value.call == call


def failing_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> EngineCore:
    """An engine with a request, whose worker raises this."""
    core = make_core()
    core.add_request(request(1))

    def execute_model(output: Any) -> None:
        raise error

    monkeypatch.setattr(core.executor, "execute_model", execute_model)
    return core


class TestSchedulerFaults:
    """Fault 25: whatever a scheduler raises names it."""

    @pytest.mark.parametrize(
        "call",
        [name for name in SCHEDULER_METHODS if name not in {"reset_prefix_cache", "shutdown"}],
    )
    def test_an_exception_names_plugin_and_call(self, call):
        core = make_core(**faulty(scheduler={"fail": call}))
        with pytest.raises(
            PluginFault,
            match=rf"plugin tenonry_testkit.kernel.faulty:FaultyScheduler \(.*\) failed in {call}: RuntimeError",
        ) as caught:
            drive(core)
        assert caught.value.plugin == "tenonry_testkit.kernel.faulty:FaultyScheduler"
        assert caught.value.call == call

    @pytest.mark.parametrize(
        "call", ["has_requests", "schedule", "update_from_output", "make_stats", "finish_requests"]
    )
    def test_a_missing_result_names_plugin_and_call(self, monkeypatch, call):
        core = make_core()
        core.add_request(request(1))
        monkeypatch.setattr(core.scheduler, call, lambda *_: None)
        text = rf"plugin \S+ \(.*\) failed in {call}: TypeError: the result is None"
        with pytest.raises(PluginFault, match=text):
            drive(core)

    def test_a_broken_contract_names_plugin_step_and_rule(self):
        core = make_core(**faulty(scheduler={"rows": 3}))
        core.add_request(request(1))
        with pytest.raises(ContractViolation) as caught:
            core.step()
        assert caught.value.plugin == "tenonry_testkit.kernel.faulty:FaultyScheduler"
        assert caught.value.step_id == 0
        assert caught.value.rule

    def test_the_validator_goes_by_what_the_scheduler_was_told(self):
        """Not by the scheduler's own copy."""
        part = {"name": "tenonry_testkit.kernel.faulty:RenamedScheduler", "options": {"rows": 3}}
        core = make_core(scheduler=part)
        core.add_request(request(1))
        with pytest.raises(
            ContractViolation,
            match="tenonry_testkit.kernel.faulty:RenamedScheduler",  # noqa: RUF043
        ):
            core.step()

    @pytest.mark.parametrize(
        ("elsewhere", "order"), [(False, ["check", "execute"]), (True, ["execute", "check"])]
    )
    def test_a_step_is_checked_while_it_runs_elsewhere(self, monkeypatch, elsewhere, order):
        core, calls = make_core(), []
        core.add_request(request(1))
        monkeypatch.setattr(core.executor, "runs_elsewhere", elsewhere, raising=False)
        ((_, validator),) = core.observers
        check, execute = validator.scheduled, core.executor.execute_model
        monkeypatch.setattr(
            validator, "scheduled", lambda output: (calls.append("check"), check(output))
        )
        monkeypatch.setattr(
            core.executor,
            "execute_model",
            lambda output: (calls.append("execute"), execute(output))[1],
        )
        news, worked = core.step()
        assert worked
        assert news[0].token_ids.tolist() == expected(core, request(1))[:1]
        assert calls == order

    @pytest.mark.parametrize("refuses", [False, True])
    def test_the_scheduler_is_to_blame_for_what_runs_elsewhere(self, monkeypatch, refuses):
        """No result of such a step counts, and a worker that stumbles over it is not the cause."""
        core = make_core(**faulty(scheduler={"rows": 3}))
        core.add_request(request(1))
        monkeypatch.setattr(core.executor, "runs_elsewhere", True, raising=False)
        if refuses:
            monkeypatch.setattr(core.executor, "execute_model", lambda output: output.no_such_thing)
        with pytest.raises(
            ContractViolation,
            match="tenonry_testkit.kernel.faulty:FaultyScheduler",  # noqa: RUF043
        ):
            core.step()
        assert not core.in_flight

    def test_the_validator_can_be_turned_off(self):
        assert [record.name for record, _ in make_core().observers] == ["validator"]
        assert not make_core(validate_scheduler=False).observers

    def test_a_worker_that_answers_too_little_ends_the_engine(self, monkeypatch):
        core = make_core()
        core.add_request(request(1))
        worker = core.executor.worker
        honest = worker.execute_model

        def forgetful(output: Any) -> Any:
            result = honest(output)
            result.row, result.token_ids = result.row[:0], result.token_ids[:0]
            return result

        monkeypatch.setattr(worker, "execute_model", forgetful)
        with pytest.raises(Exception, match="answered step 0 with 0 tokens"):
            core.step()


def drive(core: EngineCore) -> None:
    """Touch every call of the scheduler."""
    core.request_counts()
    core.add_request(request(1))
    core.add_request(request(2))
    core.abort_requests([2])
    for _ in range(3):
        core.has_work()
        core.attach_stats(core.step()[0], idle=True)


class TestStall:
    """A scheduler that runs nothing must not look like a hang of the engine, nor keep a core busy with empty steps."""

    def stalled(self, clock: VirtualClock, seconds: float, connector: str | None = None) -> Any:
        core = make_core(clock=clock, kv_connector=connector, **faulty(scheduler={"idle": True}))
        core.add_request(request(1))
        for _ in range(5):
            assert core.step() == ({}, False)
            clock.advance(seconds / 4)
        return core

    @pytest.mark.parametrize("connector", [None, "tenonry_testkit.kernel.faulty:FaultyConnector"])
    def test_it_is_said_once(self, caplog, connector):
        """With a KV connector empty steps go to the workers, for a transfer may be on the way."""
        core = self.stalled(VirtualClock(), STALL_S * 3, connector)
        text = "scheduler 'tenonry_testkit.kernel.faulty:FaultyScheduler' has scheduled nothing for 10 s; 0 requests run, 1 wait"  # noqa: E501
        assert caplog.text.count(text) == 1
        core.step()
        assert caplog.text.count(text) == 1

    def test_blocks_that_a_connector_never_gives_back_are_one(self, caplog):
        """Every request has ended, and yet work remains, without end if the connector never reports completion."""
        clock = VirtualClock()
        core = make_core(
            clock=clock,
            kv_connector="tenonry_testkit.kernel.faulty:FaultyConnector",
            scheduler="tenonry_testkit.worker:CachingScheduler",
        )
        core.kv_connector.finished = lambda *_: (True, None)  # type: ignore[union-attr,method-assign]
        core.add_request(request(1, prompt=range(1, 40)))
        for _ in range(40):
            core.step()
            clock.advance(1)
        assert core.has_work()
        assert (
            "for 10 s; 0 requests run, 0 wait; it chose none, or a KV transfer hangs" in caplog.text
        )

    def test_a_short_wait_is_none(self, caplog):
        self.stalled(VirtualClock(), STALL_S)
        assert "has scheduled nothing" not in caplog.text


class TestShutdown:
    def test_executor_then_scheduler_then_connector(self):
        """EC-12."""
        core = make_core(
            **faulty(executor={}, scheduler={}),
            kv_connector="tenonry_testkit.kernel.faulty:FaultyConnector",
        )
        CALLS.clear()
        core.shutdown()
        worker_half = "FaultyConnector.shutdown"
        assert [
            "FaultyExecutor.shutdown",
            worker_half,
            "FaultyScheduler.shutdown",
            "FaultyConnector.shutdown",
        ] == CALLS

    def test_one_that_fails_keeps_nobody_from_ending(self, caplog):
        core = make_core(**faulty(executor={"fail": "shutdown"}, scheduler={"fail": "shutdown"}))
        CALLS.clear()
        core.shutdown()
        assert CALLS == ["FaultyExecutor.shutdown", "FaultyScheduler.shutdown"]
        assert len(re.findall(r"shutting down .* failed", caplog.text)) == 2
