"""The suite of routes over `tenant-limits`."""

from __future__ import annotations

from tenonry_testkit.route import RouteContract


class TestTenantLimits(RouteContract):
    route = "tenant-limits"
