"""Limits by a clock of the test: rates, concurrency, tenants of a file, headers, and memory."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from starlette.exceptions import HTTPException

from tenonry.errors import ConfigError
from tenonry_route_tenant_limits import limits as module
from tenonry_route_tenant_limits.limits import Grant, TenantLimits, duration
from tenonry_route_tenant_limits.route import admission
from tenonry_route_tenant_limits.settings import TenantSettings

ALICE = "2bd806c97f0e00af"  # of the hash of the key `alice`


class Clock:
    """A time that tests set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def made(clock: Clock, **settings: object) -> TenantLimits:
    return TenantLimits(TenantSettings.model_validate(settings), clock)


def refused(limits: TenantLimits, key: str = "", headers: object = ()) -> HTTPException:
    with pytest.raises(HTTPException) as caught:
        limits.admit(key, list(headers))
    assert caught.value.status_code == 429
    return caught.value


def test_requests_per_minute_refill_evenly(clock):
    limits = made(clock, tenant_requests_per_minute=6)
    for _ in range(6):
        limits.admit("a", []).end()
    error = refused(limits, "a")
    assert error.detail == "this client has reached requests_per_minute=6; try again in 10 s"
    assert error.headers == {
        "retry-after": "10",
        "x-ratelimit-limit-requests": "6",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1m0s",
    }
    limits.admit("b", [])  # another tenant
    clock.now += 9.9
    refused(limits, "a")
    clock.now += 0.2
    limits.admit("a", [])
    refused(limits, "a")
    clock.now += 1e6
    grants = [limits.admit("a", []) for _ in range(6)]  # a minute's worth at most
    assert len(grants) == 6
    refused(limits, "a")


def test_tokens_are_taken_when_known_and_debts_are_waited_for(clock):
    limits = made(clock, tenant_tokens_per_minute=600)
    grant = limits.admit("a", [])
    other = limits.admit("a", [])  # nothing is known of the first yet
    grant.use(500, 0)
    assert grant.headers()["x-ratelimit-remaining-tokens"] == "100"
    for _ in range(20):
        grant.use(0, 10)
    grant.end()
    assert other.headers()["x-ratelimit-remaining-tokens"] == "0"
    error = refused(limits, "a")
    assert "tokens_per_minute=600; try again in 11 s" in error.detail  # 101 tokens at 10 a second
    assert error.headers["x-ratelimit-reset-tokens"] == "1m10s"
    clock.now += 10.2
    limits.admit("a", [])


def test_concurrent_requests(clock):
    limits = made(clock, tenant_concurrent_requests=2)
    first, _ = limits.admit("a", []), limits.admit("a", [])
    error = refused(limits, "a")
    assert (error.headers["retry-after"], "concurrent_requests=2" in error.detail) == ("1", True)
    first.end()
    limits.admit("a", [])
    refused(limits, "a")
    limits.admit("b", [])


def test_refused_requests_cost_nothing(clock):
    limits = made(clock, tenant_requests_per_minute=2, tenant_concurrent_requests=1)
    grant = limits.admit("a", [])
    for _ in range(5):
        refused(limits, "a")
    grant.end()
    limits.admit("a", [])


FILE = """
alice: {api-keys: alice, requests_per_minute: 2}
batch: {api_keys: [b1, b2], requests_per_minute: 0, tokens_per_minute: 1k}
team-x:
"""


@pytest.fixture
def file(tmp_path) -> str:
    path = tmp_path / "tenants.yaml"
    path.write_text(FILE)
    return str(path)


def test_tenants_of_a_file_by_key_and_by_header(clock, file):
    limits = made(clock, tenants_file=file, tenant_requests_per_minute=1)
    for _ in range(2):
        limits.admit(ALICE, [])
    assert "the tenant 'alice' has reached requests_per_minute=2" in refused(limits, ALICE).detail
    limits.admit("other", [])
    assert "this client has reached requests_per_minute=1" in refused(limits, "other").detail
    named = made(clock, tenants_file=file, tenant_requests_per_minute=1, tenant_header="X-Tenant")
    for _ in range(9):
        named.admit(ALICE, [(b"x-tenant", b"batch")])
    named.admit("", [(b"x-tenant", b"team-x")])
    assert "'team-x'" in refused(named, "", [(b"x-tenant", b"team-x")]).detail
    named.admit(ALICE, [])  # all without the header are one tenant
    refused(named, "other")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alice: {requests_per_minute: -1}", "tenant 'alice': requests_per_minute=-1: "),
        ("alice: {request_per_minute: 1}", "unknown setting 'request_per_minute'; did you mean 'requests_per_minute'"),
        ("alice: 3", "'alice' must hold a mapping of limits"),
        ("[alice]", "must hold a mapping of tenants, not a list"),
        ("alice: {", "is not valid YAML (line 1)"),
        ("alice:\n  {api_keys: k1: x}", "is not valid YAML (line 2)"),
        ("a: {api_keys: [k1, k2]}\nb: {api_keys: k1}", "tenants 'a' and 'b' have the same API key"),
    ],
)  # fmt: skip
def test_wrong_files_are_refused_without_keys(text, message, tmp_path, clock):
    path = tmp_path / "tenants.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        made(clock, tenants_file=str(path))
    assert str(path) in str(caught.value)
    assert "k1" not in str(caught.value)


def test_missing_file_is_refused(clock, tmp_path):
    with pytest.raises(ConfigError, match=r"tenants_file=.*none.yaml cannot be read: No such file"):
        made(clock, tenants_file=str(tmp_path / "none.yaml"))


def test_idle_tenants_are_forgotten(clock, monkeypatch):
    limits = made(clock, tenant_requests_per_minute=60)
    for number in range(1000):
        limits.admit(str(number), []).end()
        clock.now += 0.5
    assert limits.num_tenants < 10
    running: list[Grant] = [limits.admit(f"r{number}", []) for number in range(20)]
    monkeypatch.setattr(module, "MAX_TENANTS", 30)
    for number in range(1000):  # none is idle before long, and no more than the bound are kept
        limits.admit(str(number), []).end()
        assert limits.num_tenants <= 30 + len(running)
    clock.now += 1e3
    for grant in running:
        grant.end()
    for number in range(40):
        limits.admit(f"x{number}", []).end()
        clock.now += 1e3
    assert limits.num_tenants <= 3


def test_admission_is_left_out_without_limits_and_alone(file):
    def context(count: int = 1, **settings: object) -> SimpleNamespace:
        return SimpleNamespace(
            settings=TenantSettings.model_validate(settings), api_server_count=count
        )

    assert admission(context(4)) is None
    assert admission(context(tenants_file=file)) is not None
    with pytest.raises(ConfigError, match="each of api_server_count=4 API servers would count"):
        admission(context(4, tenant_requests_per_minute=1))


def test_durations_are_written_as_openai_does():
    texts = [duration(each) for each in (0, 0.02, 1, 1.5, 59.94, 60, 61.5, 360)]
    assert texts == ["0ms", "20ms", "1s", "1.5s", "59.9s", "1m0s", "1m1.5s", "6m0s"]
