"""Several front ends over the same engines, and nodes without a front end, as a library for servers; runs in their top
processes and in front ends.
"""

from __future__ import annotations
