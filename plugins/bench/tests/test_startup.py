from __future__ import annotations

import pytest

from tenonry_bench import first_token
from tenonry_bench.__main__ import main

pytestmark = pytest.mark.integration


def test_report(bench, model_folder):
    """Three fresh processes of each kind would take long; one of each shows the shape."""
    words = (
        "--model",
        model_folder,
        "--engine-args",
        "--worker null",
        "--runs",
        "1",
        "--quick-runs",
        "1",
    )
    report, printed = bench("startup", *words)
    for name in ("startup_s", "bare_python_s", "help_s"):
        assert report[name]["median"] > 0, name
    assert "import_s" in report
    assert "process to first token" in printed


def test_first_token_can_be_left_out(bench):
    report, printed = bench("startup", "--runs", "0", "--quick-runs", "1")
    assert report["startup_s"] is None
    assert "first token" not in printed


def test_the_marker_comes_after_a_token(model_folder, capsys):
    assert first_token.main(["--model", str(model_folder), "--worker", "null"]) == 0
    assert capsys.readouterr().out == f"{first_token.MARKER} [200]\n"


def test_a_model_that_is_not_there_is_named(tmp_path, capsys):
    assert (
        main(["startup", "--model", str(tmp_path / "gone"), "--runs", "1", "--quick-runs", "1"])
        == 1
    )
    assert "gone" in capsys.readouterr().err
