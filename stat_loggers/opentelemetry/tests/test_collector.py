"""Destination of spans: the option, the standard variables, and rejected addresses."""

from __future__ import annotations

import pytest

from tenonry.errors import ConfigError
from tenonry_stat_logger_opentelemetry.collector import collector_url, shown

EXACT, BASE = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"
PROTOCOL, TRACES_PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"


@pytest.mark.parametrize(
    ("endpoint", "environment", "url"),
    [
        (None, {}, "http://localhost:4318/v1/traces"),
        (
            "http://there:4318",
            {EXACT: "http://a/b", PROTOCOL: "grpc"},
            "http://there:4318/v1/traces",
        ),
        ("http://there:4318/", {}, "http://there:4318/v1/traces"),
        ("https://there/otlp/traces", {}, "https://there/otlp/traces"),
        (None, {EXACT: "http://a/b", BASE: "http://c"}, "http://a/b"),
        (None, {EXACT: "http://a"}, "http://a"),
        (None, {BASE: "http://c:1/"}, "http://c:1/v1/traces"),
        (None, {BASE: "https://c/otlp", PROTOCOL: "http/protobuf"}, "https://c/otlp/v1/traces"),
        (
            None,
            {BASE: "http://c", TRACES_PROTOCOL: "http/protobuf", PROTOCOL: "grpc"},
            "http://c/v1/traces",
        ),
    ],
)
def test_the_option_wins_over_the_environment(endpoint, environment, url):
    assert collector_url(endpoint, environment) == url


@pytest.mark.parametrize(
    ("endpoint", "environment", "named"),
    [
        ("grpc://there:4317", {}, "option endpoint: 'grpc://there:4317'"),
        ("there:4318", {}, "option endpoint: 'there:4318"),
        ("http://", {}, "option endpoint"),
        ("http://there:99999", {}, "option endpoint"),
        (None, {EXACT: "there:4317"}, EXACT),
        (None, {BASE: "there:4317"}, BASE),
    ],
)
def test_what_is_no_http_address_is_refused_by_its_origin(endpoint, environment, named):
    with pytest.raises(ConfigError, match="write http://localhost:4318") as caught:
        collector_url(endpoint, environment)
    assert str(caught.value).startswith(named)


@pytest.mark.parametrize("name", [PROTOCOL, TRACES_PROTOCOL])
def test_another_protocol_is_refused(name):
    with pytest.raises(ConfigError, match=f"{name} is 'grpc'"):
        collector_url(None, {name: "grpc"})


def test_a_password_is_not_shown():
    assert shown("https://me:secret@there:1/v1/traces?key=secret") == "https://there:1/v1/traces"
    with pytest.raises(ConfigError) as caught:
        collector_url("ftp://me:secret@there/", {})
    assert "secret" not in str(caught.value)
