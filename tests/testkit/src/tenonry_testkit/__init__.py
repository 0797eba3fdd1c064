"""Fakes, fixtures and conformance suites for tests of tenonry and its plugins; runs under pytest."""

from __future__ import annotations
