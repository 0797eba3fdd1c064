"""Steps that do not fit into memory are computed in smaller parts: no engine ends, and every stream is as without."""

from __future__ import annotations

import pytest
import torch

from tenonry_worker_torch.runner.runner import ModelRunner

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]
MOST_TOKENS = 5  # fewer than there are streams, and than their prompts have
HUGE = 1 << 60  # bytes


def test_a_worker_that_can_hold_only_few_tokens_at_once(serve, expected, monkeypatch):
    """It notices when it has begun. Every process of the server is a fork of this one."""
    compute = ModelRunner._forward

    def limited(self, inputs, *arguments, **options):
        logits = compute(self, inputs, *arguments, **options)
        return logits if len(inputs.token_ids) <= MOST_TOKENS else torch.empty(HUGE)

    monkeypatch.setattr(ModelRunner, "_forward", limited)
    disturbed = serve("")
    disturbed.check(expected, disturbed.run())
    output = disturbed.server.output
    assert "computed in smaller parts" in output
    assert "DefaultCPUAllocator" in output
    assert "Traceback" not in output
    assert "died" not in output
