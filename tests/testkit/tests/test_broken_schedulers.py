"""The suite detects schedulers with one defect each, by the test that must name it."""

from __future__ import annotations

import dataclasses
import math
import random
import re
import time
from collections import Counter
from pathlib import Path
from typing import ClassVar

import msgspec
import numpy as np
import pytest
from hypothesis import Phase

from tenonry.errors import ContractViolation, PluginError, RequestError
from tenonry.messages import EngineCoreOutputs
from tenonry.request import RequestStatus
from tenonry.sampling_params import SamplingParams
from tenonry.step import NO_ROWS, Adapter, NewRow
from tenonry_kvcache import KVCacheManager
from tenonry_kvcache.transfers import Transfers
from tenonry_kvcache.windows import WindowTables
from tenonry_scheduling import BaseScheduler
from tenonry_scheduling.adapters import AdapterLimit
from tenonry_scheduling.encoder import EncoderLimit
from tenonry_scheduling.whole import WholePieces
from tenonry_testkit.fakes import FakeKVError, ReferenceScheduler, SimpleBlocks
from tenonry_testkit.outcomes import failing_tests
from tenonry_testkit.rules import RuleBroken
from tenonry_testkit.scenarios_rows import REQUESTS
from tenonry_testkit.scheduler import SchedulerContract
from tenonry_testkit.tiers import nightly_unless

ROOT = Path(__file__).parents[3]
# Further corpora.
ELSEWHERE = (
    "tests/testkit/tests/test_broken_caches.py",
    "schedulers/batching/tests/test_broken_policy_hosts.py",
)
CARRIES = "test_a_new_row_has_the_fields_of_its_request"


class Honest(BaseScheduler):
    """The reference scheduler, with a prefix cache, over blocks that a defect can replace."""

    blocks_class = KVCacheManager
    choose = ReferenceScheduler.choose

    def __init__(self, context):
        super().__init__(context, self.blocks_class(context))


# --------------------------------------------------------------------------------------------------- what a row carries
class ChangesRows(ReferenceScheduler):
    """Passes each new row on as `carry` returns it."""

    other_fields: ClassVar[dict[str, object]]

    def schedule(self):
        output = super().schedule()
        output.new = [self.carry(new) for new in output.new]
        return output

    def carry(self, new):
        return msgspec.structs.replace(new, **self.other_fields)


class ForgetsTheAdapter(ChangesRows):
    caught_by = CARRIES
    other_fields: ClassVar = {"adapter": None}


class ServesAnotherAdapter(ChangesRows):
    caught_by = CARRIES
    other_fields: ClassVar = {"adapter": Adapter("a", "2")}


class ForgetsTheFeatures(ChangesRows):
    caught_by = CARRIES
    other_fields: ClassVar = {"features": None}


class EmptiesTheFeatures(ChangesRows):
    """In the request itself."""

    caught_by = CARRIES

    def add_request(self, request):
        (request.source.features or {}).clear()
        super().add_request(request)

    def carry(self, new):
        return new


class ForgetsTheMedia(ChangesRows):
    caught_by = CARRIES
    other_fields: ClassVar = {"media": None}


class EmptiesTheMedia(ChangesRows):
    """In the request itself."""

    caught_by = CARRIES

    def add_request(self, request):
        if request.source.media:
            request.source.media.inputs.clear()
        super().add_request(request)

    def carry(self, new):
        return new


class ForgetsBadWords(ChangesRows):
    caught_by = CARRIES
    other_fields: ClassVar = {"bad_words": ()}


class ForgetsStopIds(ChangesRows):
    caught_by = CARRIES
    other_fields: ClassVar = {"stop_token_ids": ()}


class SamplesWithTheDefaults(ChangesRows):
    caught_by = CARRIES

    def carry(self, new):
        plain = SamplingParams(temperature=0, max_tokens=new.sampling.max_tokens)
        return msgspec.structs.replace(new, sampling=plain)


class ChangesTheFirstToken(ChangesRows):
    caught_by = CARRIES

    def carry(self, new):
        return msgspec.structs.replace(
            new, token_ids=new.token_ids ^ (np.arange(len(new.token_ids)) == 0)
        )


class TakesDeliveredTokensForPrompt(ChangesRows):
    caught_by = CARRIES
    other_fields: ClassVar = {"num_output": 0}


class ForgetsTheAdapterOfThePreempted(ChangesRows):
    caught_by = CARRIES

    def carry(self, new):
        is_new = self.requests[new.handle].num_preemptions == 0
        return new if is_new else msgspec.structs.replace(new, adapter=None)


class CountsStepsFromOne(ReferenceScheduler):
    caught_by = "test_it_is_a_scheduler_that_the_kernel_accepts"

    def schedule(self):
        output = super().schedule()
        output.step_id += 1
        return output


# ---------------------------------------------------------------------------------------------------- what a step holds
class OverBudget(ReferenceScheduler):
    caught_by = "test_limits_are_never_exceeded"

    def __init__(self, context):
        super().__init__(context)
        self.token_budget += 2


class ChunksUnasked(ReferenceScheduler):
    caught_by = "test_long_prompts_wait_for_a_whole_step_without_chunked_prefill"

    def __init__(self, context):
        super().__init__(context)
        self.chunked_prefill = True

    def choose(self, step):
        for request in step.running:
            step.run(request, 3)
        for request in step.waiting:
            if not step.run(request, 3):
                break


class CutsWhatMustStayWhole(ReferenceScheduler):
    caught_by = "test_no_step_ends_in_a_piece_that_must_stay_whole"

    class Pieces(WholePieces):
        def enter(self, request, row, num_computed):
            pass

    def __init__(self, context):
        super().__init__(context)
        self.lifecycle.whole = self.Pieces()


class TakesAnyAdapter(ReferenceScheduler):
    caught_by = "test_a_step_has_at_most_max_loras_adapters"

    def __init__(self, context):
        super().__init__(context)
        self.lifecycle.adapters = None


class EncodesEverything(ReferenceScheduler):
    caught_by = "test_a_step_encodes_at_most_max_encoder_tokens"

    def __init__(self, context):
        super().__init__(context)
        self.lifecycle.encoder = None


class EncodesOncePerRow(ReferenceScheduler):
    """An image encoded by one row does not reduce the budget of the next."""

    caught_by = "test_a_step_encodes_at_most_max_encoder_tokens"

    def choose(self, step):
        for request in step.running:
            self.lifecycle.encoder.begin_step()
            step.run(request)
        for request in step.waiting:
            self.lifecycle.encoder.begin_step()
            if not step.run(request):
                break


class EncodesHalfAsMuch(ReferenceScheduler):
    caught_by = "test_limits_delay_only_what_exceeds_them"

    def __init__(self, context):
        super().__init__(context)
        config = context.config
        if config.max_images:
            self.lifecycle.encoder = EncoderLimit(
                config.max_encoder_tokens // 2,
                config.max_num_seqs,
                chunked_prefill=config.enable_chunked_prefill,
            )


class SamplesInTheMiddle(ReferenceScheduler):
    caught_by = "test_right_at_depth"

    def schedule(self):
        output = super().schedule()
        output.samples = output.samples | True
        return output


class RunsTheFinished(ReferenceScheduler):
    caught_by = "test_only_known_unfinished_requests_run"

    def finish_requests(self, handles, reason):
        waiting = [handle for handle in self.requests if self.requests[handle].row < 0]
        ended = super().finish_requests(
            [h for h in waiting if handles is None or h in handles], reason
        )
        for handle in [h for h in self.requests if handles is None or h in handles]:
            request = self.requests.pop(handle)
            request.status, request.finish_reason = RequestStatus.FINISHED, reason
            ended.append(request)
        return ended


class RunsPastTheLimit(ReferenceScheduler):
    caught_by = "test_length_limits_are_never_overrun"

    def add_request(self, request):
        request.max_total_tokens = min(request.max_total_tokens + 1, self.context.max_model_len)
        super().add_request(request)


class WantsRoomToSpare(ReferenceScheduler):
    """Rejects what fits exactly."""

    caught_by = "test_requests_that_just_fit_are_served"

    def add_request(self, request):
        if request.max_total_tokens > self._longest_sequence:
            raise RequestError("the request is too long", "max_tokens")
        super().add_request(request)


class KeepsAdapters(ReferenceScheduler):
    """An adapter counts for ever, whose requests have ended."""

    caught_by = "test_requests_that_cannot_share_a_step_take_turns"

    class Limit(AdapterLimit):
        __slots__ = ()

        def leave(self, request):
            pass

    def __init__(self, context):
        super().__init__(context)
        if self.lifecycle.adapters is not None:
            self.lifecycle.adapters.__class__ = self.Limit


class HandsOutABlockTwice(ReferenceScheduler):
    caught_by = "test_a_block_has_one_writer"

    class Blocks(SimpleBlocks):
        taken = 0

        def _take(self, row, group):
            self.taken += 1
            if self.taken % 7 == 0 and self._free:
                self._table(row)[group].append(self._free[0])
                return self._free[0]
            return super()._take(row, group)

    def __init__(self, context):
        BaseScheduler.__init__(self, context, self.Blocks(context))


class OneBlockShort(ReferenceScheduler):
    caught_by = "test_every_token_has_a_slot"

    class Blocks(SimpleBlocks):
        def grow(self, rows, num_tokens):
            return super().grow(rows, num_tokens - (num_tokens % self._block_size == 1))

    def __init__(self, context):
        BaseScheduler.__init__(self, context, self.Blocks(context))


# ---------------------------------------------------------------------------------------------- several steps in flight
class DeliversStaleResults(ReferenceScheduler):
    caught_by = "test_stale_results_are_dropped"

    def update_from_output(self, output, result):
        output.generation = self.rows.generation[output.row]
        self.rows.pending[result.row] += self.rows.pending[result.row] == 0
        return super().update_from_output(output, result)


class RunsGrammarsAhead(ReferenceScheduler):
    caught_by = "test_rows_with_a_grammar_wait_for_it_and_for_their_tokens"

    def schedule(self):
        self.rows.has_grammar[:] = False
        return super().schedule()


class StartsBeforeTheGrammar(ReferenceScheduler):
    caught_by = "test_rows_with_a_grammar_wait_for_it_and_for_their_tokens"

    def schedule(self):
        output = super().schedule()
        self.lifecycle.end_grammars(output.prepare)
        return output


class ForgetsTheSpecification(ReferenceScheduler):
    caught_by = "test_rows_with_a_grammar_wait_for_it_and_for_their_tokens"

    def schedule(self):
        output = super().schedule()
        output.prepare = dict.fromkeys(output.prepare)
        return output


class DoesNotWaitForTokens(ReferenceScheduler):
    caught_by = "test_rows_wait_where_tokens_are_not_fed_back"

    def __init__(self, context):
        context.feeds_back_tokens = True
        super().__init__(context)


class LosesOutputWhenPreempted(ReferenceScheduler):
    caught_by = "test_preemption_changes_no_token"

    def stopped(self, request):
        request.token_ids = request.token_ids[: request.num_prompt_tokens]
        request.num_output_tokens = 0


# ----------------------------------------------------------------------------------------------------- how requests end
class AbortsWithoutOutput(ReferenceScheduler):
    caught_by = "test_every_request_ends_exactly_once"

    def finish_requests(self, handles, reason):
        super().finish_requests(handles, reason)
        return []


class IgnoresAbortsOfTheWaiting(ReferenceScheduler):
    caught_by = "test_every_request_ends_exactly_once"

    def finish_requests(self, handles, reason):
        running = [handle for handle, request in self.requests.items() if request.row >= 0]
        return super().finish_requests(
            [h for h in running if handles is None or h in handles], reason
        )


class EndsTwice(ReferenceScheduler):
    caught_by = "test_every_request_ends_exactly_once"

    def update_from_output(self, output, result):
        news = super().update_from_output(output, result)
        for outputs in news.values():
            outputs.finished += outputs.finished[:1]
        return news


class GetsStuckOnTheLast(ReferenceScheduler):
    caught_by = "test_every_request_ends_exactly_once"

    def choose(self, step):
        if len(self.requests) > 1 or self.rows.active:
            super().choose(step)


class DoesNotKnowStopIds(ReferenceScheduler):
    caught_by = "test_stop_ids_end_requests"

    def add_request(self, request):
        super().add_request(request)
        self.rows.may_stop.fill(False)

    def started(self, *what):
        super().started(*what)
        self.rows.stop_ids.fill(-1)


class ForgetsWhatWasDelivered(ReferenceScheduler):
    caught_by = "test_delivered_tokens_count_as_output"

    def add_request(self, request):
        request.num_prompt_tokens = request.num_tokens
        super().add_request(request)


class SendsToTheWrongClient(ReferenceScheduler):
    caught_by = "test_outputs_go_to_the_client_that_asked"

    def update_from_output(self, output, result):
        news = super().update_from_output(output, result)
        return {0: next(iter(news.values()), EngineCoreOutputs())} if len(news) == 1 else news


class LosesLogprobs(ReferenceScheduler):
    caught_by = "test_log_probabilities_belong_to_their_tokens"

    def update_from_output(self, output, result):
        if len(result.prompt_logprobs) > 1:
            result.prompt_logprobs = result.prompt_logprobs[1:]
        return super().update_from_output(output, result)


class ForgetsTheGone(ReferenceScheduler):
    caught_by = "test_gone_rows_are_sent_before_the_end"

    def has_requests(self):
        return bool(self.requests)


class NeverSendsGone(ReferenceScheduler):
    caught_by = "test_gone_rows_are_sent_before_the_end"

    def schedule(self):
        output = super().schedule()
        if not len(output.row):
            output.gone = NO_ROWS
        return output


class CountsWrong(ReferenceScheduler):
    caught_by = "test_counts_and_statistics_say_what_is_there"

    def make_stats(self):
        stats = super().make_stats()
        stats.num_preemptions -= 1
        return stats


# ------------------------------------------------------------------------------------------------------------- fairness
class PrefersTheUrgent(ReferenceScheduler):
    caught_by = "test_no_request_starves"

    def order(self, request):
        return request.priority


class PrefersTheShort(ReferenceScheduler):
    caught_by = "test_no_request_starves"

    def order(self, request):
        return request.num_tokens


class BreaksItsOwnOrder(ReferenceScheduler):
    caught_by = "test_no_request_starves"
    starvation_free = False

    def order(self, request):
        return request.priority

    def choose(self, step):
        step.run_ready()
        for request in sorted(step.waiting, key=lambda request: -request.priority):
            step.run(request)


# --------------------------------------------------------------------------------------------------------------- blocks
class LosesABlock(ReferenceScheduler):
    caught_by = "test_all_blocks_come_back"

    class Blocks(SimpleBlocks):
        def free(self, request, row, *, num_known, drop=False):
            if drop and row in self._tables:
                self._tables[row][0].pop()
            return super().free(request, row, num_known=num_known, drop=drop)

    def __init__(self, context):
        BaseScheduler.__init__(self, context, self.Blocks(context))


class SharesBetweenTenants(Honest):
    caught_by = "test_cached_blocks_are_private"

    def add_request(self, request):
        request.source = msgspec.structs.replace(request.source, cache_salt=None)
        super().add_request(request)


class RemembersAfterReset(Honest):
    caught_by = "test_cached_blocks_are_private"

    class blocks_class(KVCacheManager):
        def reset(self):
            return True


class CountsOneTooMany(Honest):
    caught_by = "test_prefix_cache_changes_no_token"

    class blocks_class(KVCacheManager):
        def match(self, request, row):
            match = super().match(request, row)
            hit = match.num_computed
            return match._replace(num_computed=hit + (hit > 0))


class TrustsFailedRows(Honest):
    caught_by = "test_a_failed_row_ends_alone"

    class blocks_class(KVCacheManager):
        def free(self, request, row, *, num_known, drop=False):
            return super().free(request, row, num_known=num_known)


class TrustsFailedLoads(Honest):
    caught_by = "test_a_kv_connector_changes_no_token"

    class blocks_class(KVCacheManager):
        def transfers(self, done, failed):
            return super().transfers([*done, *failed], [])


class GivesBackTooEarly(Honest):
    caught_by = "test_a_window_changes_no_token"

    class blocks_class(KVCacheManager):
        def __init__(self, context):
            super().__init__(context)
            if isinstance(self._tables, WindowTables):
                first_place = self._tables._first_place
                self._tables._first_place = lambda start, window: first_place(start, window - 2)


class ForgetsWithTwoStepsInFlight(Honest):
    """Caches, but only where steps follow one another."""

    caught_by = "test_a_repeated_prompt_is_found"

    class blocks_class(KVCacheManager):
        def __init__(self, context):
            super().__init__(context)
            self._caching = self._caching and context.max_concurrent_steps == 1


class LosesHits(Honest):
    """Its statistics leave out one cached block of each request."""

    caught_by = "test_hits_are_those_that_requests_start_with"

    class blocks_class(KVCacheManager):
        def take_counts(self):
            queries, hits = super().take_counts()
            return queries, max(0, hits - 4)


class LosesPreemptions(ReferenceScheduler):
    caught_by = "test_hits_are_those_that_requests_start_with"

    def make_stats(self):
        stats = super().make_stats()
        stats.num_preemptions = 0
        return stats


class CountsFromTheStart(ReferenceScheduler):
    """Its steps are those since it was made."""

    caught_by = "test_statistics_add_up_to_what_happened"

    def make_stats(self):
        stats = super().make_stats()
        stats.num_steps = self.rows.step
        return stats


class CountsLoadsTwice(Honest):
    caught_by = "test_loads_add_up"

    class blocks_class(KVCacheManager):
        def take_external_counts(self):
            queries, hits = super().take_external_counts()
            return queries, 2 * hits


class LosesDrafts(ReferenceScheduler):
    caught_by = "test_drafts_add_up"

    def make_stats(self):
        stats = super().make_stats()
        stats.num_accepted_tokens = 0
        return stats


class TakesWhatNeverFits(ReferenceScheduler):
    caught_by = "test_what_never_fits_is_rejected_alone"

    def add_request(self, request):
        self.lifecycle.add(request)


class SharesBetweenLengthClasses(Honest):
    caught_by = "test_length_classes_are_kept_apart"

    def __init__(self, context):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tenonry_kvcache.manager.length_classes", lambda groups: None)
            super().__init__(context)


class OutgrowsItsLengthClass(Honest):
    caught_by = "test_rows_restart_for_another_length_class"

    def __init__(self, context):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tenonry_scheduling.lifecycle.length_classes", lambda groups: None)
            super().__init__(context)


class SavesAfterAReset(Honest):
    caught_by = "test_a_reset_reaches_no_connector"

    class blocks_class(KVCacheManager):
        def reset(self):
            return self.prefix.reset()


class WaitsForEveryLoad(Honest):
    caught_by = "test_a_load_without_end_costs_no_request"

    class blocks_class(KVCacheManager):
        def __init__(self, context):
            super().__init__(context, transfer_timeout=math.inf)


class RunsOnSpoiltBlocks(Honest):
    caught_by = "test_a_failed_row_spoils_no_load"

    class Trusting(Transfers):
        def spoil(self, rows):
            pass

    def __init__(self, context):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tenonry_kvcache.manager.Transfers", self.Trusting)
            super().__init__(context)


class EndsBeforeMinTokens(ReferenceScheduler):
    """It relies on workers that hold stop ids back."""

    caught_by = "test_min_tokens_hold_stop_ids_back"

    def schedule(self):
        self.rows.stop_from[:] = 0
        return super().schedule()


class KnowsTwoStopIds(ReferenceScheduler):
    caught_by = "test_stop_ids_end_requests"

    def schedule(self):
        self.rows.stop_ids[:, 2:] = -1
        return super().schedule()


class ForgetsFailureCodes(ReferenceScheduler):
    caught_by = "test_a_failed_row_ends_alone"

    def update_from_output(self, output, result):
        found = super().update_from_output(output, result)
        for outputs in found.values():
            for finished in outputs.finished:
                finished.code = ""
        return found


class ForgetsWhyRequestsEnd(ReferenceScheduler):
    caught_by = "test_every_request_ends_exactly_once"

    def finish_requests(self, handles, reason):
        ended = super().finish_requests(handles, reason)
        for request in ended:
            request.finish_reason = None
        return ended


class HasAnyAttribute(ReferenceScheduler):
    caught_by = "test_it_is_a_scheduler_that_the_kernel_accepts"

    def __getattr__(self, name):
        return None


class NumbersPromptsFromOne(ReferenceScheduler):
    caught_by = "test_log_probabilities_belong_to_their_tokens"

    def update_from_output(self, output, result):
        found = super().update_from_output(output, result)
        for outputs in found.values():
            for part in outputs.prompt_logprobs:
                part.row += 1
        return found


class SwapsTokensInTheFifthRow(ChangesRows):
    """Only engines with more rows than most tests have get there."""

    caught_by = "test_any_traffic_in_any_engine"

    def carry(self, new):
        if new.row < 4:
            return new
        return msgspec.structs.replace(new, token_ids=new.token_ids[::-1].copy())


class EndsFewAtOnce(ReferenceScheduler):
    """A list of handles that is long is not read to its end."""

    caught_by = "test_a_crowd_waits_and_leaves"

    def finish_requests(self, handles, reason):
        return super().finish_requests(None if handles is None else list(handles)[:32], reason)


class MovesStates(Honest):
    """Takes a KV connector for a model whose states it does not bring."""

    caught_by = "test_a_kv_connector_suits_the_model"

    def __init__(self, context):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tenonry_kvcache.manager.check_movable", lambda kinds: None)
            super().__init__(context)


class TakesAnyAnswer(ReferenceScheduler):
    """A result without a row's token counts as a result without tokens."""

    caught_by = "test_results_that_do_not_fit_are_rejected"

    def update_from_output(self, output, result):
        try:
            return super().update_from_output(output, result)
        except PluginError:
            return {}


class LosesPooledResults(ReferenceScheduler):
    caught_by = "test_pooled_results_go_to_their_requests"

    def update_from_output(self, output, result):
        result.pooled = dict(list(result.pooled.items())[:1])
        return super().update_from_output(output, result)


class RemembersItsRequests(ReferenceScheduler):
    """For a statistic that grows with every request."""

    caught_by = "test_ended_requests_leave_nothing_behind"

    def __init__(self, context):
        super().__init__(context)
        self.starts = {}

    def started(self, request, row, num_computed, now):
        self.starts[request.handle] = now


class LetsAnyNumberPass(ReferenceScheduler):
    """A request that waits for its adapter starts when no other one comes any more."""

    caught_by = "test_few_pass_a_request_that_waits"

    def __init__(self, context):
        super().__init__(context)
        if self.lifecycle.adapters is not None:
            self.lifecycle.adapters = AdapterLimit(context.config.max_loras, 10**9)

    def choose(self, step):
        step.run_ready()
        for request in step.waiting:
            step.run(request)


class SharesTheLastRowLate(Honest):
    """Of the rows of a step, the last one offers its blocks when it ends."""

    caught_by = "test_a_repeated_prompt_is_found"

    class blocks_class(KVCacheManager):
        def register(self, rows, num_known):
            most = max(1, len(rows) - 1)
            super().register(rows[:most], num_known[:most])


class HidesOutputFromConnectors(Honest):
    """A KV connector gets the blocks of prompts only."""

    caught_by = "test_loads_add_up"

    class OfPrompts(Transfers):
        def finished(self, request, blocks):
            return super().finished(request, blocks[:1])

    def __init__(self, context):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tenonry_kvcache.manager.Transfers", self.OfPrompts)
            super().__init__(context)


# --------------------------------------------------------------------------------------------------------------- rounds
class TakesRoundsOfAnyLength(ReferenceScheduler):
    caught_by = "test_right_in_rounds"

    def __init__(self, context):
        super().__init__(context)
        if self._rounds is not None:
            self._rounds._most += 3


class MeasuresNoTime(ReferenceScheduler):
    """Each step has as many tokens as the engine permits, however long they take."""

    caught_by = "test_rounds_have_their_length"

    def __init__(self, context):
        self.stopped_at = None

        def clock():
            return context.clock() if self.stopped_at is None else self.stopped_at

        super().__init__(dataclasses.replace(context, clock=clock))

    def schedule(self):
        self.stopped_at = None
        output = super().schedule()
        self.stopped_at = self.context.clock()
        return output


class GoesOnBehindTheWholeRound(ReferenceScheduler):
    caught_by = "test_right_in_rounds"

    def update_from_output(self, output, result):
        places = self.rows.num_computed.copy()
        outputs_by_client = super().update_from_output(output, result)
        self.rows.num_computed[:] = places
        return outputs_by_client


class DeliversWhatFollowsTheEnd(ReferenceScheduler):
    caught_by = "test_right_in_rounds"

    def __init__(self, context):
        super().__init__(context)
        end = self._results._end
        self._results._end = lambda row, length, stop: end(row, length, None)


# ---------------------------------------------------------------------------------------------------------- determinism
class ForgetsLogprobsOfRounds(ReferenceScheduler):
    caught_by = "test_right_in_rounds"

    def update_from_output(self, output, result):
        if output.round_tokens > 1:
            result = msgspec.structs.replace(result, logprobs=None)
        return super().update_from_output(output, result)


class ReadsTheClock(ReferenceScheduler):
    caught_by = "test_the_wall_clock_is_not_read"

    def order(self, request):
        return time.monotonic()


class DrawsLots(ReferenceScheduler):
    caught_by = "test_same_calls_give_the_same_decisions"

    def victim(self, running):
        return random.choice(running)


class GoesByHashOrder(ReferenceScheduler):
    caught_by = "test_same_calls_give_the_same_decisions"

    def choose(self, step):
        step.run_ready()
        waiting = {request.request_id: request for request in step.waiting}
        for name in set(waiting):
            if not step.run(waiting[name]):
                break


class GoesByAddress(ReferenceScheduler):
    caught_by = "test_same_calls_give_the_same_decisions"

    def order(self, request):
        return id(request)


BROKEN = [
    value
    for value in list(globals().values())
    if isinstance(value, type) and "caught_by" in vars(value)
]


def suite_for(broken):
    """Suite with less effort than those of first-party schedulers, sufficient to detect each defect."""
    return type(
        "Suite",
        (SchedulerContract,),
        {"scheduler": broken, "phases": (Phase.generate,), "effort": 0.3},
    )


@pytest.mark.parametrize(
    "broken",
    nightly_unless(lambda broken: BROKEN.index(broken) % 4 == 0, BROKEN),
    ids=lambda broken: broken.__name__,
)
@pytest.mark.slow
@pytest.mark.broken("scheduler")
def test_defect_is_found_by_the_test_that_names_it(broken):
    """The failure is a rule that was broken, not an accident."""
    failures = failing_tests(suite_for(broken), [broken.caught_by])
    assert broken.caught_by in failures, f"{broken.__name__} passed"
    error = failures[broken.caught_by]
    assert isinstance(error, RuleBroken | ContractViolation | FakeKVError), repr(error)


def test_corpus_covers_the_contract():
    """At least twelve defects, and every test of the suite that looks for one finds at least one."""
    caught = Counter(broken.caught_by for broken in BROKEN)
    for file in ELSEWHERE:
        caught.update(re.findall(r'caught_by = "(test_\w+)"', (ROOT / file).read_text("utf-8")))
    tests = {name for name in dir(SchedulerContract) if name.startswith("test_")}
    assert len(BROKEN) >= 12
    assert tests - caught.keys() == {
        "test_a_snapshot_of_states_changes_no_token"  # in test_broken_snapshots
    }


@pytest.mark.slow
class TestHonest(SchedulerContract):
    """The base of the defective schedulers is correct."""

    scheduler = Honest
    effort = 0.4


def test_every_field_that_a_row_has_of_its_request_has_a_scenario():
    of_the_scheduler = {"row", "handle", "num_computed", "block_ids"}
    assert set(REQUESTS) | of_the_scheduler == set(NewRow.__struct_fields__)
