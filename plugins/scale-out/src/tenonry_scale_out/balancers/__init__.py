"""Load balancers: `affinity`, `least-loaded` and `round-robin`; they run in the front end."""

from __future__ import annotations
