"""Stat loggers of an AsyncLLM (AF-2, AF-22, SL-1, US-1)."""

from __future__ import annotations

import time

import pytest

from tenonry.client.admission import Admission
from tenonry.errors import RequestError, TenonryError
from tenonry.interfaces.stat_logger import StatLoggerContext
from tenonry_testkit.fakes import RecordingStatLogger
from tenonry_testkit.kernel.served import QUICK, served_config
from tenonry_testkit.served import collect, params

pytestmark = pytest.mark.usefixtures("forked_children")


class Tracer(RecordingStatLogger):
    traces = True


class TestStatLoggers:
    """AF-2, AF-22, SL-1, US-1."""

    def test_they_get_the_engine_its_steps_and_its_requests(self, serve):
        observer = Tracer(StatLoggerContext(served_config()))
        served = serve(observers={"mine": observer}, worker=QUICK)
        assert served.engine.stat_loggers == {"mine": observer}

        async def main() -> None:
            assert await served.engine.is_tracing_enabled() is True
            fields = {"tags": {"tenant": "acme"}, "trace_headers": {"traceparent": "00-1-2-01"}}
            await collect(served.engine, [1, 2], params(max_tokens=20), "r", **fields)
            while not any(
                record.iteration and record.iteration.finished for record in observer.records
            ):
                await served.engine.reset_prefix_cache()  # the observer gets it a little later

        served.run(main())
        served.engine.shutdown()
        (info,) = observer.infos
        assert info.usage["model"]
        assert info == served.engine.info
        assert sum(record.iteration.num_generation_tokens for record in observer.records) == 20
        assert any(record.scheduler.num_running == 1 for record in observer.records)
        (finished,) = [each for record in observer.records for each in record.iteration.finished]
        assert finished.request_id == "r"
        assert finished.num_prompt_tokens == 2
        assert finished.tags == {"tenant": "acme"}
        assert finished.trace_headers == {"traceparent": "00-1-2-01"}
        assert abs(finished.start_time - time.time()) < 3600  # the time of day
        assert observer.calls[-2:] == ["log", "shutdown"]

    def test_one_given_by_the_caller_gets_records_even_without_log_stats(self, serve):
        observer = RecordingStatLogger(StatLoggerContext(served_config()))
        served = serve(observers={"mine": observer}, log_stats=False)
        served.run(collect(served.engine, [1], params(), "r"))
        served.run(served.engine.reset_prefix_cache())
        served.engine.shutdown()
        assert observer.records

    def test_rejections_and_sleep_are_recorded(self, serve, monkeypatch):
        observer = RecordingStatLogger(StatLoggerContext(served_config()))
        served = serve(observers={"mine": observer})

        async def main() -> None:
            with pytest.raises(RequestError):
                await collect(served.engine, [], params(), "r")
            monkeypatch.setattr(Admission, "capacity", 1)
            with served.engine.admission.admit("held1", 1), pytest.raises(TenonryError):
                await collect(served.engine, [1], params(), "r")
            await served.engine.drain(0)
            with pytest.raises(TenonryError):
                await collect(served.engine, [1], params(), "r")
            await served.engine.sleep(2)
            await served.engine.wake_up()

        served.run(main())
        served.engine.shutdown()
        assert observer.rejections == ["invalid", "queue_full", "draining"]
        assert observer.sleeps == [(True, 2), (False, 0)]

    def test_those_of_the_configuration_are_built_by_name(self, serve):
        served = serve(stat_loggers=["tenonry_testkit.fakes:RecordingStatLogger"])
        served.run(collect(served.engine, [1], params(), "r"))
        served.engine.shutdown()
        (observer,) = served.engine.stat_loggers.values()
        assert isinstance(observer, RecordingStatLogger)
        assert observer.records
