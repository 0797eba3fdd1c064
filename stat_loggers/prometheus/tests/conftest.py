"""Shared fixtures: loggers that are shut down, and expositions read back by Prometheus's own parser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tenonry.config import EngineConfig
from tenonry.interfaces.stat_logger import StatLoggerContext
from tenonry_stat_logger_prometheus.logger import PrometheusOptions, PrometheusStatLogger


class Scrape:
    """One exposition. `value` sums the series of a name whose labels match; `labels` lists their label sets."""

    def __init__(self, body: bytes) -> None:
        self.families = {
            family.name: family for family in text_string_to_metric_families(body.decode())
        }
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def labels(self, name: str) -> list[dict[str, str]]:
        return [dict(labels) for found, labels in self.samples if found == name]

    def value(self, name: str, /, **labels: str) -> float:
        matching = [
            value
            for (found, given), value in self.samples.items()
            if found == name and labels.items() <= given
        ]
        assert matching, f"no series {name} with {labels}"
        return sum(matching)


def build(model: str = "demo", served: tuple[str, ...] = (), **options) -> PrometheusStatLogger:
    config = EngineConfig(model=model, served_model_name=served)
    return PrometheusStatLogger(StatLoggerContext(config, options=PrometheusOptions(**options)))


def read(logger: PrometheusStatLogger) -> Scrape:
    return Scrape(logger.render()[0])


@pytest.fixture
def make_logger() -> Iterator:
    made: list[PrometheusStatLogger] = []

    def make(*args, **options) -> PrometheusStatLogger:
        made.append(build(*args, **options))
        return made[-1]

    yield make
    for logger in made:
        logger.shutdown()


@pytest.fixture(scope="session")
def scrape():
    return read


@pytest.fixture(scope="session")
def make_plain():
    """For hypothesis, which runs one test function many times: a logger that needs no shutdown."""
    return lambda: build(process_metrics=False)
