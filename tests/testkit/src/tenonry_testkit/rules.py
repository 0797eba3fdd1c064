"""The lines of the scheduler contract, and the exception that names the broken one."""

from __future__ import annotations

DECLARED_TYPE = "each method returns what the interface declares"
LIMITS = "max_num_batched_tokens, max_num_seqs and max_model_len are never exceeded"
KNOWN_AND_UNFINISHED = "only known, unfinished requests are scheduled"
ONE_WRITER = "one block is never given to two writers"
OWN_FIELDS = "a new row has the prompt, delivered tokens, parameters, adapter, features and media of its request"
HAS_SLOT = "every scheduled token has a slot"
STATE_SLOTS = "a row with a cached prefix starts from one snapshot, saved in an earlier step after the last reset"
FEW_ADAPTERS = "the rows of one step have at most max_loras different adapters"
FEW_IMAGES = (
    "a step encodes at most max_encoder_tokens tokens of images, or one image that is larger"
)
STAYS_WHOLE = "no step ends in a piece of a prompt that `Media.whole` names"
NO_OVERRUN = "length limits are never overrun"
NO_CHUNKS = "without chunked prefill a row computes all its tokens in one step that can hold them"
NO_PENDING = "without feedback no row with a pending token is scheduled"
ROUNDS = "a round holds only rows that decode, within max_round_tokens"
ROUND_LENGTH = (
    "a scheduler of the library runs as many tokens in a step as were measured to take 5 ms"
)
FREE_LIMITS = (
    "requests within every limit of a step take no more steps than those without its subject"
)
NOT_STARVED = "a request waits at most for those ahead of it, plus max_num_seqs more"
STARTS_BESIDE = "continuous batching starts as many waiting requests as fit, in the next step, beside those that run"
OWN_ORDER = "of two equal requests the one that its order puts first starts first"
ONE_OUTCOME = "every request reaches exactly one terminal outcome"
GRAMMAR_IS_THERE = (
    "a request whose grammar the worker was asked to compile starts when that is done"
)
NEVER_FITS = "add_request rejects a request that can never run, and only such a one"
RESTARTS = (
    "a request that started with at most `LengthClasses.original` tokens computes no later one"
)
LATE_LOADS = "a KV load that does not end delays its own request, for a bounded time, and none that comes long after"
RIGHT_TOKENS = "every request gets its own tokens, in order"
RIGHT_ENDING = "a request ends when and why it should"
NAMES_ATTRIBUTES = "a scheduler of the library that lacks an attribute names it, and a missing call of its constructor"
NO_OUTPUT_AFTER_THE_END = "nothing is delivered to a request that has ended"
ANSWERS_FIT = "a result that does not fit its step raises PluginError"
OWN_POOLED = "a request ends with what the worker pooled for it"
OWN_CLIENT = "outputs go to the client that asked"
OWN_LOGPROBS = (
    "log-probabilities come with the tokens that they belong to, for who asked and only then"
)
COUNTS = "counts and statistics say what is there"
GONE_IS_SENT = "has_requests() stays true until every gone row was sent, and no longer"
NOTHING_LEAKS = "when all requests have ended, every block is free or a reusable cached block"
KEEPS_NOTHING = "a request that has ended leaves nothing behind in the scheduler"
FULL_BLOCKS = "a KV connector gets all full blocks of a finished request, and its tokens"
TRANSFERS_END = "a KV connector names in poll, once, every request that waits for its load, or whose blocks it keeps"
TRANSFER_BRINGS = (
    "a KV connector brings the K/V of the request's own tokens before it reports a load as done"
)
CLIENT_PARAMETERS = "what a KV connector returns for the client of a request that ended reaches it"
NAMES_ITS_CONNECTOR = "an exception in a KV connector names the connector and its method"
LOADS_COUNT = (
    "a KV load that ends in time is used, and one that fails restarts no unrelated request"
)
BLOCK_NAMES = "`KVConnector.digests` names blocks by their content, the same in every engine"
KEPT_BLOCKS = (
    "a KV connector that keeps blocks for too long gets no others; the engine serves requests with the blocks that "
    "are left, or ends with an error that names the connector"
)
MATCH_IN_BLOCKS = "match() promises whole blocks and never the last token"
BLOCKS_IN_USE = "a KV connector touches only blocks of running requests and of its transfers"
SAME_DECISIONS = "the same calls and the same clock give the same decisions"
NO_WALL_CLOCK = "the only clock that is read is context.clock"
CACHE_IS_PRIVATE = (
    "a cached block is reused only for the same tokens, salt and adapter, and never after a reset"
)
FINDS_PREFIXES = "a prompt that was computed before is found in the prefix cache"
KEEPS_THE_RECENT = "what was used last is the last to leave the prefix cache"
CHECKED = "an invalid policy is rejected by name, before the start"
POLICY_FORMS = "any object with a method of a policy is one, with defaults for the others"
NAMES_ITS_POLICY = "an exception in a policy names the policy and its method"


class RuleBroken(AssertionError):
    """A scheduler broke its contract. `rule`: the broken line."""

    def __init__(self, rule: str, detail: str) -> None:
        self.rule = rule
        super().__init__(f"{rule}: {detail}")


def expect(holds: object, rule: str, detail: str, *parts: object) -> None:
    """Raise RuleBroken unless `holds`. `parts` fill the detail's braces only then: most checks hold, and formatting
    costs time.
    """
    if not holds:
        raise RuleBroken(rule, detail.format(*parts) if parts else detail)
