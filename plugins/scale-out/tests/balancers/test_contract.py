"""The conformance suite of load balancers over each of them."""

from __future__ import annotations

from typing import ClassVar

from tenonry_testkit.load_balancer import LoadBalancerContract


class TestAffinity(LoadBalancerContract):
    load_balancer = "affinity"


class TestImpatientAffinity(LoadBalancerContract):
    load_balancer = "tenonry_scale_out.balancers.affinity:Affinity"
    options: ClassVar = {"slack": 0, "remembered_chunks": 3}
    effort = 0.5


class TestLeastLoaded(LoadBalancerContract):
    load_balancer = "least-loaded"


class TestRoundRobin(LoadBalancerContract):
    load_balancer = "round-robin"


class TestPrefillDecode(LoadBalancerContract):
    """Without a first engine among the candidates it is the balancer that it is given."""

    load_balancer = "prefill-decode"
    options: ClassVar = {"prefill_engines": 1, "balancer": "round-robin"}
    fair = False
