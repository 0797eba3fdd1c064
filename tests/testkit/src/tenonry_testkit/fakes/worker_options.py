"""Options of the fake worker: its shape, and the faults that a prompt can carry. Any process."""

from __future__ import annotations

import os
import time

from tenonry.interfaces.plugin import PluginOptions
from tenonry.kv_cache import KVCacheGroup
from tenonry.step import I32
from tenonry_testkit.fakes.tokens import RECURRENT


class FakeWorkerOptions(PluginOptions):
    """`seed` changes all tokens. A step with `*_token` among the tokens it computes makes its row fail, raises, waits
    `hang_s`, or ends the process: faults that a test can put into a prompt. `fail_load` raises at start.
    `grammar_asks`: number of requests for a grammar until it is ready. `short_rounds`: a row leaves a round where its
    outputs are a multiple of that number; 0: nowhere. `holds_back_stop_ids`: False samples stop ids before min_tokens
    too, as a worker without that capability does. `windows`: one entry per KV group: 0 for full attention,
    RECURRENT for layers with a state, else a sliding window.
    """

    seed: int = 0
    vocab_size: int | None = None
    windows: tuple[int, ...] = (0,)
    free_bytes: int = 1 << 20
    block_sizes: tuple[int, ...] = ()
    steps_in_flight: int = 1
    feeds_back: bool = True
    grammar_asks: int = 1
    short_rounds: int = 0
    holds_back_stop_ids: bool = True
    delay_s: float = 0.0
    fail_load: str | None = None
    fail_row_token: int | None = None
    fail_step_token: int | None = None
    hang_token: int | None = None
    hang_s: float = 3600.0
    exit_token: int | None = None

    def misbehave(self, token_ids: I32) -> None:
        """Inject the fault of a step's tokens: end the process, hang, or raise RuntimeError."""
        present = set(token_ids.tolist())
        if self.exit_token in present:
            os._exit(77)
        if self.hang_token in present:
            time.sleep(self.hang_s)
        if self.fail_step_token in present:
            raise RuntimeError(f"the fake worker was told to fail on token {self.fail_step_token}")


def fake_group(index: int, window: int, block_sizes: tuple[int, ...] = ()) -> KVCacheGroup:
    """The KV group of one entry of `windows`, with one number per token, or per sequence."""
    layers = (f"layer.{index}",)
    if window == RECURRENT:
        return KVCacheGroup(layers=layers, kind="recurrent", state_bytes=8)
    return KVCacheGroup(
        layers=layers,
        kind="sliding" if window else "full",
        window=window,
        bytes_per_token=8,
        block_sizes=block_sizes,
    )
