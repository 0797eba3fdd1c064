"""The conformance suite of schedulers."""

from __future__ import annotations

from tenonry_testkit.scheduler import SchedulerContract


class TestShortPrompts(SchedulerContract):
    scheduler = "short_prompts.plugin:ShortPrompts"
