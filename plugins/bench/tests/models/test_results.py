from __future__ import annotations

import pytest

from tenonry_bench.models.results import Run, results_of
from tenonry_bench.workload import Workload

BATCH = Workload(requests=4, prompt_len=8, out_len=10)


def test_ratio_is_taken_run_by_run():
    values = {
        "tenonry": [Run(wall=1.0), Run(wall=2.0), Run(wall=4.0)],
        "peer": [Run(wall=2.0), Run(wall=4.0), Run(wall=2.0)],
    }
    (result,) = results_of("m", "W1", BATCH, values)
    assert result.engines["tenonry"].median == 20.0
    assert result.ratios["peer"].median == 2.0
    assert result.ratios["peer"].min == 0.5


def test_sooner_is_better_where_time_is_told():
    startup = Workload(requests=1, prompt_len=8, out_len=1, kind="startup")
    values = {"tenonry": [Run(wall=3.0)], "peer": [Run(wall=30.0)]}
    (result,) = results_of("m", "W5", startup, values)
    assert result.ratios["peer"].median == 10.0


def test_prompts_count_where_they_weigh_most():
    prefill = Workload(requests=2, prompt_len=100, out_len=2)
    speed, first = results_of("m", "W3", prefill, {"tenonry": [Run(wall=1.0, ttft=[0.1, 0.3])]})
    assert speed.engines["tenonry"].median == 204.0
    assert first.engines["tenonry"].median == pytest.approx(200.0)
    shared = Workload(requests=2, prompt_len=100, shared_prefix_len=90, out_len=2)
    assert len(results_of("m", "W4", shared, {"tenonry": [Run(wall=1.0)]})) == 1


def test_peer_that_failed_on_the_way_is_left_out():
    values = {"tenonry": [Run(wall=1.0), Run(wall=1.0)], "peer": [Run(wall=2.0)]}
    (result,) = results_of("m", "W1", BATCH, values)
    assert set(result.engines) == {"tenonry"}
    assert not result.ratios
