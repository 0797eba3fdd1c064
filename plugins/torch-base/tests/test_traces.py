"""Profiles of a rank (AF-16), and files written at its end (WK-11)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch

from tenonry.errors import ConfigError
from tenonry_torch_base.options import ProfileOptions
from tenonry_torch_base.traces import RankProfile, flush_tuning


def test_a_profile_has_the_operations_between_start_and_stop(tmp_path):
    profile = RankProfile(ProfileOptions(profile_dir=str(tmp_path)), rank=1)
    profile.start()
    torch.ones(3).cumsum(0)
    first = profile.stop()
    assert "engine0.rank1.0" in first
    with gzip.open(first) as file:
        events = json.load(file)["traceEvents"]
    assert any(event.get("name") == "aten::cumsum" for event in events)
    profile.start()
    with pytest.raises(ConfigError, match="runs already"):
        profile.start()
    profile.end()
    profile.end()
    assert len(list(tmp_path.iterdir())) == 2


def test_plain_files_and_stacks(tmp_path):
    options = ProfileOptions(profile_dir=str(tmp_path), profile_gzip=False, profile_stack=True)
    profile = RankProfile(options, rank=0)
    profile.start()
    torch.ones(3).cumsum(0)
    assert json.loads(Path(profile.stop()).read_text())["with_stack"] == 1


def test_no_folder_and_no_profile_are_named(tmp_path):
    with pytest.raises(ConfigError, match="profile_dir=FOLDER"):
        RankProfile(ProfileOptions(), rank=0).start()
    with pytest.raises(ConfigError, match="no profile runs"):
        RankProfile(ProfileOptions(profile_dir=str(tmp_path)), rank=0).stop()


@pytest.mark.parametrize(
    ("is_initialized", "is_enabled", "tunes", "records", "writes"),
    [
        (True, True, True, False, True),
        (True, True, True, True, False),
        (True, True, False, False, False),
        (True, False, True, False, False),
        (False, True, True, False, False),
    ],
)
def test_tuning_results_are_written_when_tuned_online(
    monkeypatch, is_initialized, is_enabled, tunes, records, writes
):
    asked = []
    tunable = torch.cuda.tunable
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: is_initialized)
    monkeypatch.setattr(tunable, "is_enabled", lambda: is_enabled)
    monkeypatch.setattr(tunable, "tuning_is_enabled", lambda: tunes)
    monkeypatch.setattr(tunable, "record_untuned_is_enabled", lambda: records)
    monkeypatch.setattr(tunable, "write_file", lambda: asked.append(1), raising=False)
    assert flush_tuning() is writes
    assert bool(asked) is writes
