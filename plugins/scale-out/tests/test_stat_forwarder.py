"""Numbers of a front end on their way to the supervisor's stat loggers."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from front_end_fakes import FakeLink

from tenonry.config import EngineConfig
from tenonry.errors import TenonryError
from tenonry.stats import IterationStats, SchedulerStats, StatRecord
from tenonry_helper_pool.stats import HelperStats
from tenonry_scale_out import attached
from tenonry_scale_out.attached import StatForwarder
from tenonry_scale_out.messages import LoggerCall, Metrics, MetricsRequest, Report


def forwarder(link: FakeLink, *iterations: IterationStats) -> StatForwarder:
    made = StatForwarder(EngineConfig(model="m"), link)  # type: ignore[arg-type]
    waiting = list(iterations)
    made._take_iterations = lambda: {1: waiting.pop(0)} if waiting else {}
    return made


class TestForwarder:
    def test_it_traces_if_a_logger_of_the_supervisor_does(self):
        """AF-22."""
        link = FakeLink("x")
        assert forwarder(link).traces is False
        link.attachment = msgspec.structs.replace(link.attachment, traces=True)
        assert forwarder(link).traces is True

    def test_numbers_go_once_and_nothing_is_no_report(self):
        link = FakeLink("x")
        stats = forwarder(link, IterationStats(num_prompt_tokens=3))
        stats.flush()
        stats.flush()
        (report,) = link.sent
        (record,) = report.records
        assert isinstance(record, StatRecord)
        assert (record.engine_index, record.iteration.num_prompt_tokens, record.scheduler) == (
            1,
            3,
            None,
        )
        stats.flush(7)
        assert link.sent[1] == Report([], flush=7)

    def test_numbers_of_an_engine_that_died_go_with_the_others(self):
        link = FakeLink("x")
        stats = forwarder(link, IterationStats(num_prompt_tokens=3))
        stats.observe(0, SchedulerStats(), IterationStats(num_prompt_tokens=4))
        assert link.sent == []
        stats.flush()
        stats.flush()
        (report,) = link.sent
        assert [
            (record.engine_index, record.iteration.num_prompt_tokens) for record in report.records
        ] == [(0, 4), (1, 3)]

    def test_rejections_are_counted_and_other_calls_go_at_once_in_order(self):
        link = FakeLink("x")
        stats = forwarder(link)
        for _ in range(1000):
            stats.submit("record_rejection", "queue_full")
            stats.submit("record_ignored_field")
        assert link.sent == []
        stats.submit("record_sleep_state", True, 1)
        assert link.sent == [
            Report([], [(LoggerCall("record_rejection", ("queue_full",)), 1000),
                        (LoggerCall("record_ignored_field"), 1000),
                        (LoggerCall("record_sleep_state", (True, 1)), 1)])
        ]  # fmt: skip
        assert (
            msgspec.msgpack.decode(msgspec.msgpack.encode(link.sent[0]), type=Report)
            == link.sent[0]
        )

    def test_without_loggers_nothing_is_told(self):
        link = FakeLink()
        stats = forwarder(link)
        stats.submit("record_rejection", "queue_full")
        stats.observe(0, SchedulerStats(), IterationStats())
        stats.flush()
        assert (link.sent, stats.enabled) == ([], False)

    def test_what_a_silent_supervisor_does_not_take_in_is_dropped_counted_and_reported(
        self, monkeypatch
    ):
        monkeypatch.setattr(attached, "MAX_UNACKNOWLEDGED", 2)
        link = FakeLink("x")
        stats = forwarder(
            link, *(IterationStats(num_prompt_tokens=number) for number in range(1, 7))
        )
        for _ in range(5):
            stats.flush()
        assert [report.records[0].iteration.num_prompt_tokens for report in link.sent] == [1, 2]
        assert stats.dropped == 3
        stats.acknowledge()
        stats.flush()
        assert (link.sent[-1].records[0].iteration.num_prompt_tokens, link.sent[-1].dropped) == (
            6,
            3,
        )

    @pytest.mark.parametrize(
        ("answer", "expected"),
        [
            ({"content": b"x", "content_type": "t"}, (b"x", "t")),
            ({}, None),
            ({"error": "no"}, TenonryError),
        ],
    )
    def test_metrics_are_asked_for(self, answer, expected):
        link = FakeLink("x")
        stats = forwarder(link)

        async def main() -> None:
            asked = asyncio.ensure_future(stats.render())
            await asyncio.sleep(0)
            stats.rendered(Metrics(99))  # to a question that nobody asked
            (question,) = link.sent
            assert isinstance(question, MetricsRequest)
            stats.rendered(Metrics(question.call_id, **answer))
            if expected is TenonryError:
                with pytest.raises(TenonryError, match="could not render metrics: no"):
                    await asked
            else:
                assert await asked == expected

        asyncio.run(main())

    def test_metrics_of_a_silent_supervisor_are_an_error(self, monkeypatch):
        monkeypatch.setattr(attached, "METRICS_TIMEOUT_S", 0.01)
        with pytest.raises(TenonryError, match="rendered no metrics within"):
            asyncio.run(forwarder(FakeLink("x")).render())


class TestHelpers:
    def test_the_latest_numbers_of_each_helper_go_with_the_next_report(self):
        link = FakeLink("x")
        stats = forwarder(link)
        for number in range(3):
            stats.submit("record_extra", HelperStats(helper="a", num_jobs=number))
        stats.submit("record_extra", HelperStats(helper="b", num_waiting=1))
        assert link.sent == []
        stats.flush()
        stats.flush()
        (report,) = link.sent
        assert report.helpers == [
            HelperStats(helper="a", num_jobs=2),
            HelperStats(helper="b", num_waiting=1),
        ]
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=Report) == report

    def test_none_is_lost_where_the_supervisor_is_silent(self, monkeypatch):
        monkeypatch.setattr(attached, "MAX_UNACKNOWLEDGED", 0)
        link = FakeLink("x")
        stats = forwarder(link)
        stats.submit("record_extra", HelperStats(helper="a", num_jobs=1))
        stats.submit("record_extra", HelperStats(helper="b", num_jobs=1))
        stats.flush()
        stats.submit("record_extra", HelperStats(helper="a", num_jobs=2))
        stats.flush(1)
        assert [(each.helper, each.num_jobs) for each in link.sent[-1].helpers] == [
            ("a", 2),
            ("b", 1),
        ]
