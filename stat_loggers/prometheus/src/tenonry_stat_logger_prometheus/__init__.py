"""The stat logger `prometheus`: engine numbers as metrics to scrape; runs on the observer thread. `metric_table` lists
all metrics for the documentation.
"""

from __future__ import annotations

from tenonry_stat_logger_prometheus.catalog import metric_table

__all__ = ["metric_table"]
