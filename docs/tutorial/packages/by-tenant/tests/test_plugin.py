"""The conformance suite of load balancers."""

from __future__ import annotations

from tenonry_testkit.load_balancer import LoadBalancerContract


class TestByTenant(LoadBalancerContract):
    load_balancer = "by_tenant.plugin:ByTenant"
