"""An unreachable, slow or full collector delays no request, and is logged once."""

from __future__ import annotations

import logging
import socket

import pytest
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from tenonry_stat_logger_opentelemetry.exporter import SDK_LOG, WatchedExporter

SDK = logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter")
SPANS = ("a span", "another")


class FakeExporter(SpanExporter):
    """Returns a configured result; logs as the SDK's exporter does."""

    def __init__(self) -> None:
        self.answer: SpanExportResult | Exception = SpanExportResult.FAILURE
        self.shutdowns = 0

    def export(self, spans):
        if self.answer is not SpanExportResult.SUCCESS:
            SDK.warning("Transient error %s, retrying", "refused")
            SDK.error("gave up")
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def shutdown(self):
        self.shutdowns += 1


@pytest.fixture
def watched(caplog):
    caplog.set_level(logging.INFO)
    fake = FakeExporter()
    return WatchedExporter(fake, "http://there/v1/traces"), fake


def lines(caplog, level=logging.NOTSET):
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


@pytest.fixture
def closed_address():
    """An address where nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{probe.getsockname()[1]}"


class TestSaidOnce:
    def test_a_failure_with_the_sdks_own_words(self, watched, caplog):
        exporter, _ = watched
        assert [exporter.export(SPANS) for _ in range(5)] == [SpanExportResult.FAILURE] * 5
        (line,) = lines(caplog)
        assert (
            "dropping spans for http://there/v1/traces: Transient error refused, retrying" in line
        )
        assert exporter.is_failing

    def test_and_that_it_is_over(self, watched, caplog):
        exporter, fake = watched
        for _ in range(3):
            exporter.export(SPANS)
        fake.answer = SpanExportResult.SUCCESS
        for _ in range(3):
            assert exporter.export(SPANS) is SpanExportResult.SUCCESS
        assert lines(caplog)[1:] == ["http://there/v1/traces accepts spans again; 6 were dropped"]
        assert not exporter.is_failing

    def test_a_collector_that_comes_and_goes_is_named_again_after_a_while_only(
        self, watched, caplog, monkeypatch
    ):
        exporter, fake = watched
        for _ in range(4):
            for fake.answer in (SpanExportResult.FAILURE, SpanExportResult.SUCCESS):
                exporter.export(SPANS)
        assert len(lines(caplog)) == 2
        exporter._silent_until = 0.0
        fake.answer = SpanExportResult.FAILURE
        exporter.export(SPANS)
        assert len(lines(caplog, logging.WARNING)) == 2

    def test_an_exception_is_a_failure(self, watched, caplog):
        exporter, fake = watched
        fake.answer = ValueError("on purpose")
        assert exporter.export(SPANS) is SpanExportResult.FAILURE
        assert len(lines(caplog)) == 1

    def test_a_queue_that_is_full_because_of_it(self, watched, caplog):
        exporter, _ = watched

        class Slow(FakeExporter):
            def export(self, spans):
                SDK.warning("Transient error refused")
                exporter.lost(1, "more come than it takes")
                return SpanExportResult.FAILURE

        exporter._exporter = Slow()
        exporter.export(SPANS)
        (line,) = lines(caplog)
        assert "Transient error refused" in line

    def test_a_failure_without_words(self, watched, caplog):
        exporter, _ = watched
        exporter._exporter.export = lambda _: SpanExportResult.FAILURE
        exporter.export(SPANS)
        assert "no reason given" in lines(caplog)[0]

    def test_shutdown_is_idempotent(self, watched):
        exporter, fake = watched
        exporter.shutdown()
        exporter.shutdown()
        assert fake.shutdowns == 1


class TestSdkLogCapture:
    def test_other_users_of_the_sdk_still_log(self, caplog):
        SDK.warning("theirs")
        with SDK_LOG.capture() as messages:
            SDK.warning("ours")
        SDK.warning("theirs again")
        assert messages == ["ours"]
        assert lines(caplog) == ["theirs", "theirs again"]

    def test_it_is_one_for_all_and_stays(self, make_logger):
        """A thread that logs while a filter comes or goes may pass over another one."""
        before = list(SDK.filters)
        assert SDK_LOG in before
        logger = make_logger()
        assert SDK.filters == before
        logger.shutdown()
        assert SDK.filters == before


class TestUnreachable:
    def test_a_closed_address(self, make_logger, record_of, closed_address, caplog):
        caplog.set_level(logging.INFO)
        logger = make_logger(endpoint=closed_address)
        for _ in range(3):
            logger.record(record_of())
        logger.shutdown()
        logger.shutdown()
        (line,) = [
            r.getMessage()
            for r in caplog.records
            if r.name.startswith(("tenonry", "opentelemetry", "urllib3"))
        ]
        assert closed_address in line
        assert "refused" in line

    def test_it_refuses(self, make_logger, record_of, collector, caplog, monkeypatch):
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
        collector.status = 401
        logger = make_logger()
        for _ in range(5):
            logger.record(record_of())
            collector.asked.wait(20)
            collector.asked.clear()
        logger.shutdown()
        assert len(collector.posts) >= 5
        (line,) = lines(caplog, logging.WARNING)
        assert "401" in line

    def test_one_that_was_away_is_not_waited_for(self, make_logger, record_of, collector):
        logger = make_logger()
        logger._tracer._exporter.is_failing = True
        logger.record(record_of())
        logger.shutdown()
        assert not collector.asked.is_set()

    def test_one_that_hangs_keeps_neither_records_nor_the_end(
        self, make_logger, record_of, collector, monkeypatch
    ):
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
        collector.open.clear()
        logger = make_logger()
        logger.record(record_of())
        assert collector.asked.wait(20)
        for _ in range(3000):  # more than the queue holds
            logger.record(record_of())
        logger.shutdown()
        assert collector.posts == []  # it still has not answered
        collector.open.set()

    def test_a_full_queue_is_said_once(
        self, make_logger, record_of, collector, caplog, monkeypatch
    ):
        for name, value in (
            ("SCHEDULE_DELAY", "10"),
            ("MAX_QUEUE_SIZE", "2"),
            ("MAX_EXPORT_BATCH_SIZE", "1"),
        ):
            monkeypatch.setenv(f"OTEL_BSP_{name}", value)
        collector.open.clear()
        logger = make_logger()
        for _ in range(20):
            logger.record(record_of())
        (line,) = lines(caplog)
        assert f"dropping spans for {collector.url}/v1/traces: more come than it takes" in line
        collector.open.set()
