"""Ends of an engine process: by a signal, by a fault, with its parts released."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from tenonry.launch.spawn import GROUP_SIGNALS
from tenonry.launch.supervise import STOP_SIGNAL
from tenonry.messages import EngineCoreOutputs, RequestType, make_handle
from tenonry.outputs import FinishReason
from tenonry_testkit.kernel.engine import request
from tenonry_testkit.kernel.peer import Peer
from tenonry_testkit.roles import eventually

pytestmark = pytest.mark.integration

forked = pytest.mark.usefixtures("forked_children")
SLOW = {"name": "tenonry_testkit.kernel.faulty:FaultyWorker", "options": {"delay_s": 0.02}}


@forked
@pytest.mark.parametrize("token", [6, 7])
def test_its_parts_are_released_however_it_ends(start, tmp_path, token):
    """IO-13: orderly, or by a fault."""
    farewell = tmp_path / "farewell"
    options = {"fail_step_token": 7, "farewell": str(farewell)}
    peer = start(worker={"name": "tenonry_testkit.kernel.faulty:FaultyWorker", "options": options})
    assert not farewell.exists()
    peer.add(request(1, [token], max_tokens=1))
    if token == 6:
        peer.until_finished(1)
        peer.child.process.send_signal(STOP_SIGNAL)
    eventually(lambda: peer.child.exit_code == (1 if token == 7 else 0))
    assert farewell.read_text("utf-8") == "released"


def until_it_refuses(peer: Peer) -> list[EngineCoreOutputs]:
    """Send requests until the engine rejects them; returns its messages up to then."""
    seen = []
    for late in itertools.count(2):
        peer.add(request(late, max_tokens=1))
        seen.append(peer.receive())
        errors = [output.error for outputs in seen for output in outputs.finished]
        if "the engine is shutting down" in errors:
            break
    return seen


class TestSignals:
    """IO-13, Q15: its parent's first STOP_SIGNAL drains, the second aborts, and clients are notified."""

    def test_an_idle_engine_ends_at_once(self, start):
        peer = start()
        peer.child.process.send_signal(STOP_SIGNAL)
        eventually(lambda: peer.child.exit_code == 0)

    @forked
    def test_what_runs_is_finished_and_what_comes_is_refused(self, start):
        peer = start(worker=SLOW)
        source = request(1, max_tokens=30)
        peer.add(source)
        peer.receive()
        peer.child.process.send_signal(STOP_SIGNAL)
        seen = until_it_refuses(peer)
        eventually(lambda: peer.child.exit_code == 0)
        finished = {f.handle: f for outputs in [*seen, *peer.rest()] for f in outputs.finished}
        assert finished[1].reason is FinishReason.LENGTH

    @forked
    def test_what_comes_during_the_last_step_is_answered_too(self, start):
        peer = start(
            worker={
                "name": "tenonry_testkit.kernel.faulty:FaultyWorker",
                "options": {"delay_s": 1.0},
            }
        )
        peer.add(request(1, max_tokens=2))
        peer.receive()  # the second step runs from now on
        peer.child.process.send_signal(STOP_SIGNAL)
        peer.add(request(2))
        finished = peer.until_finished(1, 2).finished
        assert finished[1].reason is FinishReason.LENGTH
        assert finished[2].error == "the engine is shutting down"
        eventually(lambda: peer.child.exit_code == 0)

    @forked
    def test_the_second_one_aborts(self, start):
        peer = start(worker=SLOW)
        peer.add(request(1, max_tokens=60))
        peer.receive()
        peer.child.process.send_signal(STOP_SIGNAL)
        until_it_refuses(peer)  # two pending signals would be merged
        peer.child.process.send_signal(STOP_SIGNAL)
        assert peer.until_finished(1).finished[1].reason is FinishReason.ABORT
        eventually(lambda: peer.child.exit_code == 0)

    @forked
    def test_after_the_timeout_the_rest_is_aborted(self, start):
        peer = start(worker=SLOW, shutdown_timeout=0.1)
        peer.add(request(1, max_tokens=60))
        peer.receive()
        peer.child.process.send_signal(STOP_SIGNAL)
        assert peer.until_finished(1).finished[1].reason is FinishReason.ABORT
        eventually(lambda: peer.child.exit_code == 0)

    @forked
    def test_every_client_hears_of_its_aborted_requests(self, start):
        peer = start(clients=2, worker=SLOW, shutdown_timeout=0)
        for client in (0, 1):
            peer.add(request(1, client=client, max_tokens=60), client=client)
        for client in (0, 1):
            peer.receive(client=client)
        peer.child.process.send_signal(STOP_SIGNAL)
        for client in (0, 1):
            handle = make_handle(client, 1)
            assert (
                peer.until_finished(handle, client=client).finished[handle].reason
                is FinishReason.ABORT
            )

    @pytest.mark.parametrize("number", GROUP_SIGNALS)
    def test_what_reaches_a_whole_group_is_the_front_ends_business(self, start, number):
        peer = start()
        peer.child.process.send_signal(number)
        assert peer.call("check_health") is True


@forked
class TestDeath:
    """IO-11, IO-12: every client receives the engine's death, and the reason."""

    def test_of_an_exception_in_a_step(self, start, capfd):
        peer = start(
            clients=2,
            worker={
                "name": "tenonry_testkit.kernel.faulty:FaultyWorker",
                "options": {"fail_step_token": 7},
            },
        )
        peer.add(request(1, [7]))
        for client in (0, 1):
            assert "plugin tenonry_testkit.kernel.faulty:FaultyWorker" in peer.until_dead(
                client=client
            )
        eventually(lambda: peer.child.exit_code == 1)
        assert "engine 3 died" in capfd.readouterr().err

    def test_of_an_executor_that_lost_a_rank_while_the_engine_was_idle(self, start):
        peer = start(clients=2, executor="tenonry_testkit.kernel.faulty:LosingExecutor")
        peer.call("call_workers", "lose_rank")
        for client in (0, 1):
            assert peer.until_dead(client=client) == "rank 1 died"
        eventually(lambda: peer.child.exit_code == 1)

    def test_of_an_executor_that_lost_a_rank_while_the_engine_was_busy(self, start):
        peer = start(executor="tenonry_testkit.kernel.faulty:LosingExecutor", worker=SLOW)
        peer.add(request(1, max_tokens=60))
        peer.call("call_workers", "lose_rank")
        assert peer.until_dead() == "rank 1 died"

    def test_of_a_broken_scheduler(self, start):
        peer = start(
            scheduler={
                "name": "tenonry_testkit.kernel.faulty:FaultyScheduler",
                "options": {"fail": "update_from_output"},
            }
        )
        peer.add(request(1))
        reason = peer.until_dead()
        assert "plugin tenonry_testkit.kernel.faulty:FaultyScheduler (tenonry-testkit " in reason
        assert ") failed in update_from_output" in reason

    def test_of_a_fault_during_a_call(self, start):
        """The call is answered, and then the engine goes: the step that it waited for is lost."""
        deep = {
            "name": "tenonry_testkit.fakes:InstantExecutor",
            "options": {"depth": 2, "late": True},
        }
        peer = start(
            executor=deep,
            worker={
                "name": "tenonry_testkit.kernel.faulty:FaultyWorker",
                "options": {"fail_step_token": 7},
            },
        )
        peer.add(request(1, [7]))
        peer.send(RequestType.UTILITY.value, msgspec.msgpack.encode([1, "reset_prefix_cache"]))
        assert "told to fail on token 7" in peer.until_dead()
        eventually(lambda: peer.child.exit_code == 1)

    def test_a_worker_that_ends_the_process_leaves_its_status(self, start):
        peer = start(
            worker={
                "name": "tenonry_testkit.kernel.faulty:FaultyWorker",
                "options": {"exit_token": 7},
            }
        )
        peer.add(request(1, [7]))
        eventually(lambda: peer.child.exit_code == 77)

    def test_an_engine_ends_when_its_front_end_does(self, start):
        """Q6."""
        peer = start()
        peer.child.release()
        eventually(lambda: peer.child.exit_code is not None)
