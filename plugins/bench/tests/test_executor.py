from __future__ import annotations

import pytest

from tenonry.errors import TenonryError
from tenonry_bench.__main__ import main
from tenonry_bench.executor_steps import DecodingEngine


@pytest.mark.parametrize(("executor", "ranks"), [("mp", 2), ("uni", 1)])
@pytest.mark.integration
def test_report(bench, executor, ranks):
    words = f"--executor {executor} --ranks {ranks} --running 5 --steps 10 --runs 2"
    report, printed = bench("executor", *words.split())
    assert report["executor"] == executor
    assert report["ranks"] == ranks
    assert report["running"] == 5
    assert report["steps"] == 10
    assert report["distribution"].startswith("tenonry-executor-")
    assert report["mean_ms"]["min"] > 0
    assert report["base_mean_ms"]["min"] > 0
    assert report["added_ms"]["n"] == 2
    assert report["added_ms"]["max"] >= report["mean_ms"]["min"] - report["base_mean_ms"]["max"]
    assert "target 0.25 ms" in printed


def test_every_step_decodes_one_token_of_each_request():
    engine = DecodingEngine(3, 40, executor="uni")
    try:
        assert len(engine.timed(40)) == 40
        with pytest.raises(TenonryError, match=r"answered \d of 3"):
            engine.timed(40)
    finally:
        engine.close()


@pytest.mark.integration
def test_an_unknown_executor_is_refused(capsys):
    assert main(["executor", "--executor", "no-such-executor"]) == 1
    assert "no-such-executor" in capsys.readouterr().err
