"""The access log has a line per request, but not per probe."""

from __future__ import annotations

import logging

import pytest

from tenonry_openai_server.serving.logging_setup import GarbageFilter, ProbeFilter


@pytest.fixture
def logged():
    """Returns a function: whether the access line of a request is written."""
    probe_filter = ProbeFilter("/api")

    def is_logged(path: str, status: int, method: str = "GET") -> bool:
        args = ("127.0.0.1:5", method, path, "1.1", status)
        record = logging.LogRecord("uvicorn.access", logging.INFO, "", 0, "%s", args, None)
        return probe_filter.filter(record)

    return is_logged


def test_requests_are_logged(logged):
    assert logged("/v1/completions", 200)
    assert logged("/v1/completions", 200)
    assert logged("/healthy", 200)


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/api/health", "/health?x=1"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_probe_is_logged_when_its_status_changes(path, method, logged):
    statuses = [200, 200, 503, 503, 200, 200]
    assert [logged(path, status, method) for status in statuses] == [
        False, False, True, False, True, False,
    ]  # fmt: skip


def test_probes_are_told_apart(logged):
    assert not logged("/health", 200)
    assert logged("/ready", 503)
    assert not logged("/health", 200)


def test_other_records_pass(logged):
    record = logging.LogRecord("uvicorn.access", logging.INFO, "", 0, "text", None, None)
    assert ProbeFilter().filter(record)


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
def test_lines_about_garbage_are_for_debugging(level, monkeypatch):
    monkeypatch.setattr(logging.getLogger("tenonry"), "isEnabledFor", level.__le__)
    text = "Invalid HTTP request received."
    record = logging.LogRecord("uvicorn.error", logging.WARNING, "", 0, text, (), None)
    assert GarbageFilter().filter(record) is (level == logging.DEBUG)
    assert record.levelname == "DEBUG"
    other = logging.LogRecord("uvicorn.error", logging.WARNING, "", 0, "ssl", (), None)
    assert GarbageFilter().filter(other)
    assert other.levelno == logging.WARNING
