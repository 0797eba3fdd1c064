"""Logging of errors that no client caused."""

from __future__ import annotations

import logging

import pytest

from tenonry.errors import RequestError
from tenonry_openai_server.errors import as_api_error


@pytest.mark.parametrize(
    ("text", "level"),
    [("Cannot call write() after write_eof()", logging.DEBUG), ("no such key", logging.ERROR)],
)
def test_an_answer_that_came_too_late_is_no_error_of_ours(text, level, caplog):
    """The connection was closed with a 400, since what followed the head was no HTTP."""
    caplog.set_level(logging.DEBUG, "tenonry.server")
    assert as_api_error(RuntimeError(text), "r1").status_code == 500
    assert [record.levelno for record in caplog.records] == [level]


def test_a_request_check_that_fails_itself_is_no_error_of_the_client(caplog):
    failed = RequestError(
        "the request check acme:check failed: KeyError('x')", code="plugin_failed"
    )
    answer = as_api_error(failed, "r1")
    assert answer.status_code == 500
    assert "acme" not in str(answer)
    assert "acme:check" in caplog.text
