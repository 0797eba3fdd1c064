"""A replay has the recorded requests, and its scheduler's own numbers."""

from __future__ import annotations

import argparse
import json

import msgspec
import pytest
from decision_runs import Asked, run

from tenonry.cli import main
from tenonry.config import EngineConfig
from tenonry_decisions.frames import pack
from tenonry_decisions.regret_command import RegretCommand, replay_config
from tenonry_decisions.replay import complete, outcome, recorded_settings, regret, replay
from tenonry_scheduler_static import StaticScheduler


def handles(recording):
    return {track.facts.handle for track in complete(recording)}


def config_of(recording, **settings):
    return EngineConfig(model="recorded", **recorded_settings(recording), **settings)


def test_the_same_scheduler_decides_the_same(busy):
    live = busy.recording
    again = replay(live, config_of(live))
    assert [track.stays for track in again.tracks] == [track.stays for track in live.tracks]
    found = outcome(again, handles(live))
    assert found == outcome(live, handles(live))
    assert set(regret(found, found).values()) == {0.0}


def test_another_scheduler_has_its_own_numbers(busy):
    live = busy.recording
    other = replay(live, config_of(live, scheduler="static"))
    first, second = outcome(live, handles(live)), outcome(other, handles(live))
    assert second.scheduler == "static"
    assert second.requests == first.requests == 7
    assert regret(first, second)["e2e_mean"] == round(first.e2e.mean - second.e2e.mean, 2)
    assert second.preemptions != first.preemptions


def test_a_policy_orders_the_replay():
    asked = [Asked(0, "a", 4, 6), Asked(0, "late", 4, 6, 5), Asked(0, "urgent", 4, 6, 1)]
    live = run(asked, max_num_seqs=1).recording
    other = replay(live, config_of(live, scheduling_policy="priority"))
    assert [live.find(name).stays[0].start for name in ("late", "urgent")] == [6, 12]
    assert [other.find(name).stays[0].start for name in ("late", "urgent")] == [12, 6]


class Idle(StaticScheduler):
    """Starts nothing."""

    def choose(self, step):
        pass


def test_a_scheduler_that_does_nothing_is_reported(busy, monkeypatch):
    monkeypatch.setattr("tenonry_decisions.replay.MAX_IDLE_STEPS", 20)
    live = busy.recording
    config = config_of(live, scheduler=f"{__name__}:Idle")
    with pytest.raises(ValueError, match="scheduled nothing in 21 steps; 7 requests are waiting"):
        replay(live, config)


@pytest.fixture
def log(busy, tmp_path):
    path = tmp_path / "decisions"
    path.write_bytes(b"".join(map(pack, [busy.header, *busy.chunks])))
    return str(path)


def test_the_verb_prints_a_table_or_json(log, capsys):
    assert main(["regret", "--log", log, "--scheduling-policy", "priority"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["live:", "replay:", "regret"]
    assert "batching / priority" in lines[2]
    assert main(["regret", "--log", log, "--scheduler", "static", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"live", "replay", "regret"}


def config_of_words(words, live):
    parser = argparse.ArgumentParser()
    RegretCommand().add_arguments(parser)
    return replay_config(parser.parse_args(["--log", "x", *words]), live)


def test_a_replay_has_the_settings_of_file_and_environment(busy, tmp_path, monkeypatch):
    file = tmp_path / "settings.yaml"
    file.write_text("max_num_seqs: 2\nenable_prefix_caching: false\n")
    monkeypatch.setenv("TENONRY_MAX_NUM_BATCHED_TOKENS", "32")
    words = ["--config", str(file), "--enable-prefix-caching"]
    config = config_of_words(words, busy.recording)
    assert (config.max_num_seqs, config.max_num_batched_tokens) == (2, 32)
    assert config.enable_prefix_caching


def test_a_replay_has_the_recorded_settings_by_default(busy):
    config = config_of_words([], busy.recording)
    assert (config.max_num_seqs, config.max_num_batched_tokens) == (4, 16)


def of_run(run, source, frames):
    return [msgspec.structs.replace(frame, run=run, source=source) for frame in frames]


def test_a_live_run_is_compared_with_its_own_shadow(busy, tmp_path, capsys):
    frames = [busy.header, *busy.chunks]
    other = run([Asked(0, "b", 6, 8)])
    path = tmp_path / "decisions"
    data = of_run(1, "live", frames) + of_run(1, "shadow", frames)
    shadow_only = of_run(2, "shadow", [other.header, *other.chunks])
    path.write_bytes(b"".join(map(pack, data + shadow_only)))
    assert main(["regret", "--log", str(path), "--shadow", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shadow"]["requests"] == 7
    without = of_run(3, "live", [other.header, *other.chunks])
    path.write_bytes(b"".join(map(pack, data + without)))
    assert main(["regret", "--log", str(path), "--shadow"]) == 1
    assert "the latest run has no shadow" in capsys.readouterr().err


def test_a_missing_shadow_and_an_unknown_scheduler_are_named(log, capsys):
    assert main(["regret", "--log", log, "--shadow"]) == 1
    assert "no records of a shadow scheduler" in capsys.readouterr().err
    assert main(["regret", "--log", log, "--scheduler", "statik"]) == 1
    assert "did you mean 'static'" in capsys.readouterr().err
