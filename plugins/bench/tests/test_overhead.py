from __future__ import annotations

import argparse
import os
from pathlib import Path

import psutil
import pytest

from tenonry.plugin.manager import PluginManager
from tenonry_bench.__main__ import main
from tenonry_bench.overhead import (
    Arm,
    default_arms,
    on_path,
    parse_arm,
    summarise,
    write_hook_modules,
)
from tenonry_bench.streams import Point


@pytest.mark.integration
@pytest.mark.slow
def test_report(bench, model_folder):
    """Two arms in engines of their own, each compared with the first one."""
    sizes = "--streams 4 --prompt-len 8 --output-len 6 --starts 1 --runs 2"
    words = sizes.split()
    arms = ["--arm", "plain=", "--arm", "records=--decision-steps 64"]
    report, printed = bench("overhead", *words, *arms, "--engine-args", f"--model {model_folder}")
    plain, records = report["results"]
    assert (plain["arm"], plain["words"]) == ("plain", [])
    assert (records["arm"], records["words"]) == ("records", ["--decision-steps", "64"])
    assert plain["ratio"] == {"median": 1, "min": 1, "max": 1, "n": 1}
    assert 0 < records["ratio"]["min"] <= records["ratio"]["max"]
    assert records["us_per_tok"]["n"] == 1
    assert "records" in printed
    assert psutil.Process().children() == []


def point(cpu_s: float) -> Point:
    return Point(
        tokens=1000,
        wall_s=1.0,
        frontend_cpu_s=cpu_s,
        engine_cpu_s=cpu_s,
        ttft_p50_s=0.1,
        tpot_p50_s=0.1,
        chunks=9,
    )


def test_ratios_are_taken_run_by_run():
    """A machine that is ten times as slow in one run changes nothing."""
    starts = [[{"a": point(k), "b": point(x * k)} for k in (1.0, 10.0, 1.0)] for x in (1.5, 2.0)]
    found = summarise(Arm("b"), Arm("a"), starts)
    assert (found.ratio.min, found.ratio.max, found.ratio.n) == (1.5, 2.0, 2)
    assert found.us_per_tok.min == pytest.approx(3000)
    assert found.engine_us_per_tok.max == pytest.approx(2000)


def test_an_arm_has_flags():
    assert parse_arm("mine=--seed 3 --decision-log 'a b'") == Arm(
        "mine", ("--seed", "3", "--decision-log", "a b")
    )


@pytest.mark.parametrize("text", ["", "plain", "=--seed 3"])
def test_an_arm_needs_a_name(text: str):
    with pytest.raises(argparse.ArgumentTypeError, match="NAME=FLAGS"):
        parse_arm(text)


@pytest.mark.integration
@pytest.mark.parametrize("arms", [["a="], ["a=", "a=--seed 3"]])
def test_one_arm_is_rejected(arms: list[str], capsys):
    assert main(["overhead", *(word for arm in arms for word in ("--arm", arm))]) == 1
    assert "at least two arms" in capsys.readouterr().err


@pytest.mark.integration
def test_a_bad_flag_is_an_error(model_folder: Path, capsys):
    words = ["--arm", "good=--scheduler none-such", "--arm", "other="]
    assert main(["overhead", *words, "--engine-args", f"--model {model_folder}"]) == 1
    assert "none-such" in capsys.readouterr().err


def test_default_arms_begin_with_plain(tmp_path: Path):
    arms = default_arms(tmp_path)
    assert arms[:2] == [Arm("plain"), Arm("plain again")]  # the second shows the noise
    assert all(arm.words or arm.path for arm in arms[2:])


def test_hook_modules_are_found_on_the_path_alone(tmp_path: Path):
    write_hook_modules(tmp_path, 2)

    def names() -> list[str]:
        found = [record.name for record in PluginManager().hook_modules]
        return [name for name in found if name.startswith("idle_hooks_")]

    with on_path(str(tmp_path)):
        assert names() == ["idle_hooks_0", "idle_hooks_1"]
        assert os.environ["PYTHONPATH"].startswith(str(tmp_path))
    assert names() == []
    assert str(tmp_path) not in os.environ.get("PYTHONPATH", "")
