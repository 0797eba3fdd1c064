"""Spans as received by a collector: parents, times, attributes (AF-22)."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from tenonry.info import EngineInfo
from tenonry.stats import IterationStats, SchedulerStats, StatRecord
from tenonry_stat_logger_opentelemetry import tracer

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
UNSAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
INFO = EngineInfo(
    model="/models/demo", served_model_name="mine", max_model_len=8, num_gpu_blocks=1, block_size=16
)
STATUS_ERROR = 2
KIND_SERVER = 2


@pytest.fixture
def spans_of(make_logger, record_of, collector):
    """Spans that the collector has received once a logger recorded these requests and was shut down."""

    def send(*requests, **options):
        logger = make_logger(**options)
        for fields in requests:
            logger.record(record_of(**fields))
        logger.shutdown()
        return collector.spans

    return send


def test_it_traces(make_logger):
    assert make_logger().traces is True


@pytest.mark.integration
def test_to_look_at_the_class_loads_nothing_of_opentelemetry():
    script = "import sys, tenonry_stat_logger_opentelemetry.logger; print([n for n in sys.modules if 'opentelem' in n])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "opentelemetry." not in done.stdout.replace("tenonry_stat_logger_opentelemetry.", "")


class TestTrace:
    def test_a_span_is_a_child_of_the_callers(self, spans_of):
        (one,) = spans_of({"trace_headers": {**SAMPLED, "tracestate": "vendor=1"}})
        assert one.span.trace_id.hex() == TRACE
        assert one.span.parent_span_id.hex() == PARENT
        assert one.span.trace_state == "vendor=1"
        assert one.span.span_id.hex() != PARENT

    def test_names_of_headers_may_be_written_as_people_do(self, spans_of):
        (one,) = spans_of({"trace_headers": {"Traceparent": SAMPLED["traceparent"]}})
        assert one.span.trace_id.hex() == TRACE

    @pytest.mark.parametrize(
        "headers", [None, {}, {"traceparent": "00-abc-def-01"}, {"tracestate": "vendor=1"}]
    )
    def test_without_a_context_it_begins_a_trace(self, headers, spans_of):
        (one,) = spans_of({"trace_headers": headers})
        assert one.span.parent_span_id == b""
        assert len(one.span.trace_id) == 16

    def test_two_requests_have_two_traces(self, spans_of):
        one, two = spans_of({"request_id": "a"}, {"request_id": "b"})
        assert one.span.trace_id != two.span.trace_id

    def test_headers_that_make_no_sense_leave_no_line_in_the_log(self, spans_of, caplog):
        bad = {**SAMPLED, "tracestate": "=,;nonsense=\x01,a=1,a=2"}
        (one,) = spans_of({"trace_headers": bad})
        assert one.span.trace_id.hex() == TRACE
        assert caplog.records == []

    def test_a_trace_that_its_caller_does_not_sample_has_no_span(self, spans_of):
        assert spans_of({"trace_headers": UNSAMPLED}) == []

    def test_the_ratio_is_for_traces_that_begin_here(self, spans_of):
        (one,) = spans_of({"trace_headers": SAMPLED}, {}, {}, sampling_ratio=0.0)
        assert one.span.trace_id.hex() == TRACE

    def test_the_standard_variables_choose_a_sampler(self, spans_of, monkeypatch):
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
        assert spans_of({}) == []

    @pytest.mark.parametrize(("share", "count"), [("1", 1), ("0", 0)])
    def test_one_of_them_gives_callers_no_say(self, share, count, spans_of, monkeypatch):
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", share)
        assert len(spans_of({"trace_headers": UNSAMPLED if count else SAMPLED})) == count


class TestSpan:
    def test_name_kind_and_times(self, spans_of):
        (one,) = spans_of({"start_time": 1_700_000_000.5, "e2e_latency_s": 2.0})
        assert one.span.name == "llm_request"
        assert one.span.kind == KIND_SERVER
        assert one.span.start_time_unix_nano == 1_700_000_000_500_000_000
        assert one.span.end_time_unix_nano == 1_700_000_002_500_000_000

    def test_a_request_of_no_known_time_ended_now(self, spans_of):
        (one,) = spans_of({"start_time": 0.0, "e2e_latency_s": 2.0})
        assert one.span.start_time_unix_nano > 1_700_000_000 * 10**9
        assert one.span.end_time_unix_nano - one.span.start_time_unix_nano == pytest.approx(
            2e9, abs=1e3
        )

    def test_attributes_travel(self, spans_of):
        (one,) = spans_of({"max_tokens": 9, "finish_reason": "length", "tags": {"tenant": "acme"}})
        found = one.attributes
        assert found["gen_ai.request.model"] == "demo"
        assert found["gen_ai.request.max_tokens"] == 9
        assert found["gen_ai.usage.input_tokens"] == 40
        assert found["gen_ai.usage.output_tokens"] == 5
        assert found["gen_ai.response.finish_reasons"] == ["length"]
        assert found["gen_ai.latency.time_to_first_token"] == 1.0
        assert found["tenonry.tag.tenant"] == "acme"

    def test_vllms_names_can_be_left_out(self, spans_of):
        (one,) = spans_of({}, vllm_names=False)
        assert "gen_ai.usage.prompt_tokens" not in one.attributes

    @pytest.mark.parametrize(
        ("reason", "status"), [("stop", 0), ("abort", 0), ("error", STATUS_ERROR)]
    )
    def test_only_an_error_is_an_error(self, reason, status, spans_of):
        (one,) = spans_of({"finish_reason": reason})
        assert one.span.status.code == status

    def test_the_model_is_the_one_that_is_served(self, make_logger, record_of, collector):
        logger = make_logger(served=())
        logger.record(record_of())
        logger.log_engine_initialized(INFO)
        logger.record(record_of(engine=3))
        logger.shutdown()
        assert [one.attributes["gen_ai.request.model"] for one in collector.spans] == [
            "path/to/demo",
            "mine",
        ]
        assert [one.attributes["tenonry.engine_index"] for one in collector.spans] == [0, 3]

    def test_records_without_requests_are_no_spans(self, make_logger, collector):
        logger = make_logger()
        logger.record(
            StatRecord(
                engine_index=0, time=1.0, scheduler=SchedulerStats(), iteration=IterationStats()
            )
        )
        logger.record(StatRecord(engine_index=0, time=1.0))
        logger.shutdown()
        assert collector.posts == []


class TestService:
    def test_it_has_a_name_and_a_version(self, spans_of):
        (one,) = spans_of({})
        assert one.resource["service.name"] == "tenonry"
        assert one.scope.name == "tenonry"
        assert bool(one.scope.version) is True

    @pytest.mark.parametrize(
        ("variable", "value"),
        [("OTEL_SERVICE_NAME", "theirs"), ("OTEL_RESOURCE_ATTRIBUTES", "service.name=theirs")],
    )
    def test_the_standard_variables_name_it(self, variable, value, spans_of, monkeypatch):
        monkeypatch.setenv(variable, value)
        assert spans_of({})[0].resource["service.name"] == "theirs"

    def test_the_option_wins(self, spans_of, monkeypatch):
        monkeypatch.setenv("OTEL_SERVICE_NAME", "theirs")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=lab")
        (one,) = spans_of({}, service_name="mine")
        assert one.resource["service.name"] == "mine"
        assert one.resource["deployment.environment.name"] == "lab"


class TestTransport:
    def test_the_usual_path_and_the_headers(self, spans_of, collector, monkeypatch):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-mine=1")
        spans_of({}, headers={"X-Mine": "2"})
        ((path, headers),) = collector.posts
        assert path == "/v1/traces"
        assert headers["content-type"] == "application/x-protobuf"
        assert headers["x-mine"] == "2"

    def test_headers_may_come_from_the_environment(self, spans_of, collector, monkeypatch):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-theirs=1")
        spans_of({})
        assert collector.posts[0][1]["x-theirs"] == "1"

    def test_the_address_may_come_from_the_environment(self, spans_of, collector, monkeypatch):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{collector.url}/elsewhere")
        spans_of({}, endpoint=None)
        assert [path for path, _ in collector.posts] == ["/elsewhere"]

    def test_spans_are_sent_while_it_runs(self, make_logger, record_of, collector, monkeypatch):
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        make_logger().record(record_of())
        assert len(collector.wait()) == 1

    def test_a_good_collector_leaves_no_line_in_the_log(self, spans_of, caplog, monkeypatch):
        monkeypatch.setattr(tracer, "FLUSH_S", 60)  # the machine may be busy
        caplog.set_level(logging.INFO)
        assert len(spans_of(*({} for _ in range(1200)))) == 1200
        assert [
            record
            for record in caplog.records
            if record.name.startswith(("tenonry", "opentelemetry"))
        ] == []
