"""The routes, one module per subject. Front end."""

from __future__ import annotations
