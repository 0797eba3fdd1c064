"""Several engines: load balancers, coordinator, front ends that share engines, and nodes without a front end."""

from __future__ import annotations
