"""Steps that do not fit into memory are computed in smaller parts: no engine ends, and every stream is as without."""

from __future__ import annotations

import pytest
import torch

from tenonry_worker_torch.runner.forward_pass import ForwardPass

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]
MOST_TOKENS = 5  # fewer than there are streams, and than their prompts have
HUGE = 1 << 60  # bytes


def test_a_worker_that_can_hold_only_few_tokens_at_once(serve, expected, monkeypatch):
    """It notices when it has begun. Every process of the server is a fork of this one."""
    compute = ForwardPass.__call__

    def limited(self, step):
        compute(self, step)
        if len(step.token_ids) > MOST_TOKENS:
            torch.empty(HUGE)

    monkeypatch.setattr(ForwardPass, "__call__", limited)
    disturbed = serve("")
    disturbed.check(expected, disturbed.run())
    output = disturbed.server.output
    assert "computed in smaller parts" in output
    assert "DefaultCPUAllocator" in output
    assert "Traceback" not in output
    assert "died" not in output
