"""Requests with a trace context through `tenonry serve`: a collector gets spans, children of the callers' (AF-22)."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2] / "stat_loggers" / "opentelemetry" / "tests")
)

from otlp_collector import Collector

pytestmark = pytest.mark.timeout(120)
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADERS = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


@pytest.mark.parametrize("servers", ["1", "2"])
def test_a_span_is_a_child_of_the_callers_and_is_sent_before_the_end(serve, collector, servers):
    arguments = ("--otlp-traces-endpoint", collector.url, "--api-server-count", servers)
    server = serve(*arguments).ready()
    with server.client() as client:
        whole = client.completions.create(
            model="tiny", prompt="Hello", max_tokens=7, extra_headers=HEADERS
        )
        messages = [{"role": "user", "content": "hi"}]
        stream = client.chat.completions.create(
            model="tiny",
            messages=messages,
            max_completion_tokens=5,
            stream=True,
            extra_headers=HEADERS,
        )
        chat_id = [chunk.id for chunk in stream][-1]
    server.process.terminate()
    assert server.end() == 0, server.output
    spans = {span.attributes["gen_ai.response.id"]: span for span in collector.wait(2)}
    assert set(spans) == {whole.id, chat_id}
    for span in spans.values():
        assert (span.span.trace_id.hex(), span.span.parent_span_id.hex()) == (TRACE, PARENT)
        assert span.span.trace_state == "vendor=1"
        assert span.resource["service.name"] == "tenonry"
    found = spans[whole.id].attributes
    assert found["gen_ai.request.model"] == "tiny"
    assert found["gen_ai.request.max_tokens"] == 7
    assert found["gen_ai.usage.input_tokens"] == whole.usage.prompt_tokens == 5
    assert found["gen_ai.usage.output_tokens"] == whole.usage.completion_tokens
    assert found["gen_ai.response.finish_reasons"] == [whole.choices[0].finish_reason]
    assert 0 < found["gen_ai.latency.time_to_first_token"] <= found["gen_ai.latency.e2e"]
    span = spans[whole.id].span
    assert span.end_time_unix_nano - span.start_time_unix_nano == pytest.approx(
        1e9 * found["gen_ai.latency.e2e"], abs=1e4
    )
    assert abs(span.end_time_unix_nano / 1e9 - time.time()) < 3600
    assert spans[chat_id].attributes["gen_ai.usage.output_tokens"] <= 5


def test_metrics_stay_and_an_endpoint_that_is_none_stops_the_start(serve, collector):
    refused = serve("--otlp-traces-endpoint", "grpc://127.0.0.1:4317")
    assert refused.end() == 1, refused.output
    assert "option endpoint: 'grpc://127.0.0.1:4317' is no address" in refused.output
    server = serve("--otlp-traces-endpoint", collector.url).ready()
    assert "tenonry:num_requests_running" in server.get("/metrics")[1]
