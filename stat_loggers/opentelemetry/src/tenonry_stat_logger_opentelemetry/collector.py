"""Collector address, from options and the standard environment. Front end or supervisor."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

from tenonry.errors import ConfigError

TRACES_PATH = "/v1/traces"
DEFAULT_BASE = "http://localhost:4318"
PROTOCOL = "http/protobuf"


def collector_url(endpoint: str | None, environment: Mapping[str, str]) -> str:
    """Address to which spans are posted. Raises ConfigError for one that is not HTTP.

    `endpoint`, if given, wins; without a path, the usual one is added. Otherwise the variables of the OpenTelemetry
    specification apply: OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, used unchanged, or OTEL_EXPORTER_OTLP_ENDPOINT, to which
    the path is added.
    """
    if endpoint is not None:
        return _with_path(_checked(endpoint, "option endpoint"))
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if protocol := environment.get(name):
            if protocol.strip() != PROTOCOL:
                raise ConfigError(
                    f"{name} is '{protocol}'; spans are sent as {PROTOCOL} only: set it to that"
                )
            break
    if exact := environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        return _checked(exact, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    base = environment.get("OTEL_EXPORTER_OTLP_ENDPOINT") or DEFAULT_BASE
    return _checked(base, "OTEL_EXPORTER_OTLP_ENDPOINT").rstrip("/") + TRACES_PATH


def shown(url: str) -> str:
    """The address without a name and password that it may hold, for the log."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _with_path(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=TRACES_PATH)) if parts.path in {"", "/"} else url


def _checked(url: str, origin: str) -> str:
    parts = urlsplit(url)
    try:
        is_port = parts.port is None or parts.port > 0
    except ValueError:
        is_port = False
    if parts.scheme not in {"http", "https"} or not parts.hostname or not is_port:
        raise ConfigError(
            f"{origin}: '{shown(url)}' is no address that spans can be posted to (OTLP over HTTP); "
            f"write {DEFAULT_BASE}, say: collectors take HTTP at port 4318, and gRPC at 4317"
        )
    return url
