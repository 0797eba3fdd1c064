"""The stat logger `prometheus`: engine numbers as metrics to scrape; runs on the observer thread."""

from __future__ import annotations
