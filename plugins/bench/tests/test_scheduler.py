from __future__ import annotations

import pytest

from tenonry.config import EngineConfig
from tenonry_bench.__main__ import main
from tenonry_bench.scheduler import MIN_STEPS
from tenonry_bench.scheduler_steps import Case, SchedulerRig


@pytest.mark.parametrize(("scheduler", "running"), [("batching", (4, 9)), ("static", (4,))])
@pytest.mark.integration
def test_report(bench, scheduler, running):
    words = f"--running {','.join(map(str, running))} --waiting 0,3 --steps 20 --runs 2"
    report, printed = bench("scheduler", "--scheduler", scheduler, *words.split())
    cases = [(case["running"], case["waiting"], case["validator"]) for case in report["results"]]
    assert cases == [(r, w, v) for r in running for w in (0, 3) for v in (False, True)]
    for case in report["results"]:
        assert case["steps"] == 20
        parts = [case[name]["median"] for name in ("schedule_ms", "update_ms", "validate_ms")]
        assert min(parts[:2]) > 0
        assert case["mean_ms"]["min"] <= case["mean_ms"]["median"] <= case["mean_ms"]["max"]
        assert case["mean_ms"]["median"] <= case["max_ms"]["median"]
        assert case["p99_ms"]["median"] <= case["max_ms"]["median"]
    assert report["distribution"].startswith(f"tenonry-scheduler-{scheduler} ")
    assert "validate ms" in printed


def test_enough_steps_for_every_phase_by_default():
    assert MIN_STEPS >= 320


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_rows_fill_their_blocks_at_staggered_steps(depth):
    """Of 16 requests exactly one needs a new block in each step, with any number of steps in flight."""
    rig = SchedulerRig(EngineConfig(model="none", block_size=16), steps=4, depth=depth)
    drive = rig._fill(Case(16, 0, validator=True))
    drive.settle(16)
    times = drive.timed(4, 16)
    assert len(times.total) == 4
    outputs = [drive.step(times) for _ in range(32)]
    assert [len(output.new_block_row) for output in outputs] == [1] * 32
    assert all(output.total_tokens == len(output.row) == 16 for output in outputs)


def test_waiting_requests_wait(tmp_path):
    rig = SchedulerRig(EngineConfig(model="none"), steps=3, cpu_clock=True)
    drive = rig._fill(Case(2, 5, validator=False))
    drive.settle(2)
    assert drive.scheduler.get_request_counts() == (2, 5)


SLOW = """
from tenonry_scheduling import BaseScheduler
from tenonry_kvcache import KVCacheManager

class OneByOne(BaseScheduler):
    def __init__(self, context):
        super().__init__(context, KVCacheManager(context))

    def choose(self, step):
        if step.run_ready():
            return
        for request in step.waiting:
            step.run(request)
            break
"""


@pytest.mark.integration
def test_a_scheduler_from_a_file_that_never_fills_the_batch_is_named(tmp_path, capsys):
    file = tmp_path / "slow.py"
    file.write_text(SLOW)
    words = f"scheduler --scheduler {file}:OneByOne --running 3 --waiting 0 --steps 5 --runs 1"
    assert main(words.split()) == 1
    assert "3 requests never decoded together" in capsys.readouterr().err
    assert (
        main(
            [
                *words.replace("--running 3", "--running 1").split(),
                "--json",
                str(tmp_path / "r.json"),
            ]
        )
        == 0
    )


def test_no_running_request_is_no_measurement(capsys):
    assert main(["scheduler", "--running", "0"]) == 1
    assert "at least one request has to run" in capsys.readouterr().err
