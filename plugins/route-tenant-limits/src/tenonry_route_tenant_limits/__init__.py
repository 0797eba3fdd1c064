"""Limits per tenant of the server: requests and tokens per minute, and concurrent requests. Front end."""

from __future__ import annotations
