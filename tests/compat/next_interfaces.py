"""Raises the interface version of every kind by one, so that plugins of the current one are of N−1.

Loaded as a hook module by a start, or as a plugin by pytest (`-p next_interfaces`).
"""

from __future__ import annotations

from typing import Any

from tenonry.plugin.kinds import KINDS
from tenonry_scale_out.load_balancer import LoadBalancer

BASES: list[Any] = [*(kind.load_base() for kind in KINDS.values()), LoadBalancer]
for base in BASES:
    base.interface_version += 1
