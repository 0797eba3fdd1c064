"""State of the limits: a token bucket per tenant and unit. Front end, event loop.

A bucket holds the limit of one minute and refills evenly, so that a tenant that paused may use a whole minute at once.
Tokens are taken when they are known, which may leave less than nothing: the next request waits until that is made up.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import time
from collections.abc import Callable, Mapping

from starlette.exceptions import HTTPException

from tenonry_route_tenant_limits.settings import Tenant, TenantSettings, common, read_tenants

MINUTE_S = 60.0
BUSY_RETRY_S = 1.0  # until one of a tenant's concurrent requests may have ended
MAX_TENANTS = 1 << 16  # with state
KEY_CHARS = 16  # of the hash by which the server knows a key


class Bucket:
    """Units that refill to `limit` within a minute. 0: no limit."""

    __slots__ = ("_at", "_left", "limit")

    def __init__(self, limit: int, now: float) -> None:
        self.limit = limit
        self._left, self._at = float(limit), now

    def left(self, now: float) -> float:
        """Units at this time; below zero after more was taken than there was."""
        self._left = min(self.limit, self._left + (now - self._at) * self.limit / MINUTE_S)
        self._at = now
        return self._left

    def take(self, count: int, now: float) -> None:
        """Take units."""
        self._left = self.left(now) - count

    def wait_s(self, units: float, now: float) -> float:
        """Seconds until there are `units`."""
        return max(0.0, units - self.left(now)) * MINUTE_S / self.limit if self.limit else 0.0


class State:
    """Use of one tenant."""

    __slots__ = ("requests", "running", "tenant", "tokens")

    def __init__(self, tenant: Tenant, now: float) -> None:
        self.tenant = tenant
        self.requests = Bucket(tenant.requests_per_minute or 0, now)
        self.tokens = Bucket(tenant.tokens_per_minute or 0, now)
        self.running = 0

    def is_idle(self, now: float) -> bool:
        """True if it is as a new one would be."""
        full = all(not each.wait_s(each.limit, now) for each in (self.requests, self.tokens))
        return full and not self.running

    def headers(self, now: float) -> dict[str, str]:
        """OpenAI's headers for the limits that are set."""
        found = {}
        for unit, bucket in (("requests", self.requests), ("tokens", self.tokens)):
            if bucket.limit:
                found[f"x-ratelimit-limit-{unit}"] = str(bucket.limit)
                found[f"x-ratelimit-remaining-{unit}"] = str(max(0, int(bucket.left(now))))
                found[f"x-ratelimit-reset-{unit}"] = duration(bucket.wait_s(bucket.limit, now))
        return found


class Grant:
    """One request that was admitted."""

    __slots__ = ("_clock", "_state")

    def __init__(self, state: State, clock: Callable[[], float]) -> None:
        self._state, self._clock = state, clock
        state.running += 1

    def headers(self) -> Mapping[str, str]:
        """Headers of the response."""
        return self._state.headers(self._clock())

    def use(self, prompt_tokens: int, completion_tokens: int) -> None:
        """Count tokens."""
        self._state.tokens.take(prompt_tokens + completion_tokens, self._clock())

    def end(self) -> None:
        """The request has ended."""
        self._state.running -= 1


class TenantLimits:
    """Admits requests by the limits of their tenants. Idle tenants are forgotten."""

    def __init__(
        self, settings: TenantSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Read the file of tenants. Raises ConfigError."""
        self._clock = clock
        self._header = (settings.tenant_header or "").lower().encode()
        self._common = common(settings)
        self._tenants = read_tenants(settings)
        self._names = {
            hashlib.sha256(key.encode()).hexdigest()[:KEY_CHARS]: name
            for name, tenant in self._tenants.items()
            for key in tenant.api_keys
        }
        self._states: dict[str, State] = {}

    @property
    def has_limits(self) -> bool:
        """False if no request can be refused."""
        limits = [self._common, *self._tenants.values()]
        return any(
            each.requests_per_minute or each.tokens_per_minute or each.concurrent_requests
            for each in limits
        )

    @property
    def num_tenants(self) -> int:
        """Tenants with state."""
        return len(self._states)

    def admit(self, key: str, headers: list[tuple[bytes, bytes]]) -> Grant:
        """Admit a request. `key`: prefix of its API key's hash. Raises HTTPException 429."""
        now = self._clock()
        name = self._name(key, headers)
        state = self._states.get(name)
        if state is None:
            self._forget(now)
            state = self._states[name] = State(self._tenants.get(name, self._common), now)
        self._check(name, state, now)
        state.requests.take(1, now)
        return Grant(state, self._clock)

    def _name(self, key: str, headers: list[tuple[bytes, bytes]]) -> str:
        """Name of a tenant; "" for all requests that name none."""
        if not self._header:
            return self._names.get(key, key)
        given = next((value for name, value in headers if name == self._header), b"")
        return given.decode("latin-1")[:256]

    def _check(self, name: str, state: State, now: float) -> None:
        most = state.tenant.concurrent_requests
        is_busy = bool(most) and state.running >= (most or 0)
        for setting, limit, wait_s in (
            ("concurrent_requests", most, BUSY_RETRY_S if is_busy else 0.0),
            ("requests_per_minute", state.requests.limit, state.requests.wait_s(1, now)),
            ("tokens_per_minute", state.tokens.limit, state.tokens.wait_s(1, now)),
        ):
            if wait_s:
                who = f"the tenant '{name}'" if name in self._tenants else "this client"
                seconds = max(1, math.ceil(wait_s))
                raise HTTPException(
                    429,
                    f"{who} has reached {setting}={limit}; try again in {seconds} s",
                    {"retry-after": str(seconds), **state.headers(now)},
                )

    def _forget(self, now: float) -> None:
        """Drop idle tenants: two are looked at for each that comes, so that idle ones never pile up."""
        for name in [*itertools.islice(self._states, 2)]:
            state = self._states.pop(name)
            is_full = len(self._states) >= MAX_TENANTS and not state.running
            if not is_full and not state.is_idle(now):
                self._states[name] = state  # to the end


def duration(seconds: float) -> str:
    """A time as OpenAI writes it: 20ms, 1.5s, 6m0s."""
    if seconds < 1:
        return f"{round(1000 * seconds)}ms"
    minutes, rest = divmod(round(seconds, 1), 60)
    return f"{int(minutes)}m{rest:g}s" if minutes else f"{rest:g}s"
