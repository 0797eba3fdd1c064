"""Records of a request: log lines for its start and end, and its statistics. Front end."""

from __future__ import annotations

import logging
import time

from tenonry.client.stream import Stream
from tenonry.stats import FinishedRequestStats

logger = logging.getLogger(__name__)


def log_added(stream: Stream) -> None:
    """The line that says that a request was accepted; it has its prompt's length and no text."""
    logger.info(
        "request %s: added with %d prompt tokens, %s",
        stream.request_id,
        len(stream.prompt_token_ids),
        stream.request.sampling_params,
    )


def log_end(stream: Stream) -> None:
    """The one line that says how a request ended: failed and why, aborted, or finished with which reason."""
    reasons = {each.finish_reason: None for each in stream.completions}  # each one once, in order
    if stream.error is not None:
        end = f"failed: {getattr(stream.error, 'reason', stream.error)}"
    elif "abort" in reasons:
        end = "aborted"
    else:
        end = f"finished: {', '.join(map(str, reasons))}"
    logger.info(
        "request %s: %s (%d prompt tokens, %d output tokens)",
        stream.request_id,
        end,
        len(stream.prompt_token_ids),
        stream.num_generated,
    )


def finished_stats(stream: Stream, reason: str, now: float) -> FinishedRequestStats:
    """The record for stat loggers; `now` is the front end's monotonic clock."""
    metrics = stream.metrics
    params = stream.request.sampling_params
    elapsed = now - metrics.arrival_time
    stats = FinishedRequestStats(
        request_id=stream.request_id,
        finish_reason=reason,
        num_prompt_tokens=len(stream.prompt_token_ids),
        num_generation_tokens=stream.num_generated,
        num_cached_tokens=stream.num_cached_tokens,
        e2e_latency_s=elapsed,
        queued_s=metrics.queued_s,
        num_preemptions=metrics.num_preemptions,
        max_tokens=params.max_tokens,
        n=params.n,
        tags=stream.request.tags,
        trace_headers=stream.request.trace_headers,
        start_time=time.time() - elapsed,
    )
    first = metrics.first_token_time
    if first:
        stats.ttft_s = first - metrics.arrival_time
        stats.prefill_s = max(0.0, stats.ttft_s - metrics.queued_s)
        stats.decode_s = max(0.0, metrics.last_token_time - first)
    return stats
