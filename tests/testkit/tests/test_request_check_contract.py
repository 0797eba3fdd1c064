"""The suite of request checks, over one that is right and over broken ones."""

from __future__ import annotations

import time
from pathlib import Path
from typing import ClassVar

import pytest

from tenonry.config import setting
from tenonry.errors import RequestError
from tenonry.interfaces.plugin import PluginSettings
from tenonry_testkit.outcomes import failing_tests
from tenonry_testkit.request_check import RequestCheckContract, make_request


class TenantSettings(PluginSettings):
    """Settings of the check."""

    blocked_tenant: str = setting(default="nobody")
    """Tenant whose requests are rejected."""


def check_tenant(request, limits):
    """Rejects one tenant."""
    blocked = limits.config.section(TenantSettings).blocked_tenant
    if request.tags.get("tenant") == blocked:
        raise RequestError(f"tags.tenant={blocked}: this tenant is blocked", "tags")


check_tenant.Settings = TenantSettings


class TestTenant(RequestCheckContract):
    request_check = check_tenant
    settings: ClassVar = {"blocked_tenant": "acme"}
    accepted: ClassVar = [make_request(tags={"tenant": "other"})]
    rejected: ClassVar = [make_request(tags={"tenant": "acme"})]


class TestByName(TestTenant):
    request_check = f"{__name__}:check_tenant"


KEPT = []


def expects_a_tag(request, limits):
    if request.tags["tenant"] == "acme":
        raise RequestError("blocked", "tags")


def returns_false(request, limits):
    return request.tags.get("tenant") != "acme"


def changes_tags(request, limits):
    request.tags["seen"] = 1.0


def changes_the_prompt(request, limits):
    request.prompt_token_ids[:1] = 0


def counts_calls(request, limits):
    KEPT.append(request)
    if len(KEPT) % 5 == 0:
        raise RequestError("too many requests", "tags")


def leaves_it_to_the_front_end(request, limits):
    if limits.capabilities is None and request.priority < 0:
        raise RequestError("priority is negative", "priority")


def needs_a_worker(request, limits):
    if "lora" not in limits.capabilities and request.adapter is not None:
        raise RequestError("no adapters here", "adapter")


def rejects_without_a_text(request, limits):
    if not len(request.prompt_token_ids):
        raise RequestError("")


def names_no_field(request, limits):
    if not len(request.prompt_token_ids):
        raise RequestError("the prompt is empty", 0)


def reads_a_file(request, limits):
    Path("/proc/self/status").read_text("utf-8")


def prints(request, limits):
    print(request.request_id)


def reads_the_clock(request, limits):
    if time.time() < request.waited_s:
        raise RequestError("it waited too long", "arrival_time")


def takes_one_argument(request):
    return None


def has_odd_settings(request, limits):
    return None


has_odd_settings.Settings = dict


def accepts_everything(request, limits):
    return None


BROKEN = {
    expects_a_tag: "test_it_rejects_with_request_errors_only",
    needs_a_worker: "test_it_rejects_with_request_errors_only",
    returns_false: "test_it_answers_nothing",
    changes_tags: "test_it_changes_nothing",
    changes_the_prompt: "test_it_changes_nothing",
    counts_calls: "test_it_decides_by_the_request_alone",
    leaves_it_to_the_front_end: "test_a_rejection_holds_in_the_engine",
    rejects_without_a_text: "test_a_rejection_has_a_text_and_names_a_field",
    names_no_field: "test_a_rejection_has_a_text_and_names_a_field",
    reads_a_file: "test_it_has_no_effects",
    prints: "test_it_has_no_effects",
    reads_the_clock: "test_it_reads_no_clock",
    takes_one_argument: "test_it_is_a_function_that_the_kernel_finds",
    has_odd_settings: "test_it_is_a_function_that_the_kernel_finds",
    accepts_everything: "test_known_verdicts",
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
@pytest.mark.broken("request_check")
def test_broken_ones_are_caught(broken):
    KEPT.clear()
    suite = type("Suite", (RequestCheckContract,), {"request_check": staticmethod(broken)})
    suite.rejected = [make_request(tags={"tenant": "acme"})] * (broken is accepts_everything)
    assert BROKEN[broken] in failing_tests(suite, [BROKEN[broken]])


def test_every_test_of_the_suite_catches_one():
    tests = {name for name in dir(RequestCheckContract) if name.startswith("test_")}
    assert tests == set(BROKEN.values())
