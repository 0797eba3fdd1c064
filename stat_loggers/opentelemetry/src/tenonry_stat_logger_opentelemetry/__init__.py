"""The stat logger `opentelemetry`: a span per finished request, in its caller's trace; runs on the observer thread."""

from __future__ import annotations
