"""The conformance suite of load balancers."""

from __future__ import annotations

from tenonry_testkit.load_balancer import LoadBalancerContract


class TestV1LoadBalancer(LoadBalancerContract):
    load_balancer = "v1_load_balancer.plugin:V1LoadBalancer"
