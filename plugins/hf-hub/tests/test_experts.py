"""Validation of settings for experts that engines share, before anything is started."""

from __future__ import annotations

import pytest

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError
from tenonry_hf_hub import hooks
from tenonry_hf_hub.experts import check_rendezvous

DISTANT = "tenonry_testkit.kernel.launch_roles:DistantLauncher"
SPREAD = {"enable_expert_parallel": True, "data_parallel_size": 2}
MEETING = "tcp://10.0.0.1:29551"


@pytest.mark.parametrize(
    ("settings", "steps_together"),
    [
        (SPREAD, True),
        (SPREAD | {"expert_rendezvous": MEETING, "data_parallel_size_local": 1}, True),
        (SPREAD | {"expert_rendezvous": "tcp://[fe80::1]:29551"}, True),
        (SPREAD | {"data_parallel_size_local": 1, "data_parallel_start_rank": 1}, True),
        (SPREAD | {"data_parallel_size": 1}, False),
        ({"data_parallel_size": 2}, False),
    ],
)
def test_engines_step_together_where_they_share_experts(model_folder, settings, steps_together):
    config = EngineConfig(model=str(model_folder), **settings)
    assert hooks.tenonry_resolve_model(config).needs_lockstep is steps_together


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"expert_rendezvous": MEETING}, "only engines that share experts meet there; add"),
        (
            SPREAD | {"data_parallel_size": 1, "expert_rendezvous": MEETING},
            "only engines that share experts",
        ),
        (SPREAD | {"data_parallel_size_local": 1}, "add --expert-rendezvous tcp://HOST:PORT"),
        (SPREAD | {"launcher": DISTANT}, "add --expert-rendezvous tcp://HOST:PORT"),
        (SPREAD | {"data_parallel_rank": 1}, "data_parallel_rank=1 is one of them; only"),
        *(
            (SPREAD | {"expert_rendezvous": text}, "it must be tcp://HOST:PORT, with the address")
            for text in (
                "10.0.0.1:29551",
                "file:///tmp/x",
                "tcp://10.0.0.1",
                "tcp://:29551",
                "tcp://10.0.0.1:0",
                "tcp://10.0.0.1:99999",
                "tcp://10.0.0.1:29551/x",
                "tcp://[fe80::1:29551",
            )
        ),
    ],
)
def test_where_engines_cannot_meet(settings, text):
    with pytest.raises(ConfigError, match=text):
        check_rendezvous(EngineConfig(model="x", **settings))
