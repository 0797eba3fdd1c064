"""The conformance suite of call sets: each line of their contract is a test. Test process.

from tenonry_testkit.call_set import CallSetContract

class TestMine(CallSetContract):
    call_set = "my_package:MyCalls"
    calls = [("count", []), ("reset", [3])]
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Sequence
from typing import Any, ClassVar

from tenonry.config import EngineConfig
from tenonry.engine.utility import EngineUtilities, answer
from tenonry.errors import EngineGenerateError
from tenonry.interfaces.call_set import CallSet, FrontEnd, FrontEndHalf
from tenonry.interfaces.plugin import PluginContext
from tenonry.messages import UtilityCall
from tenonry_testkit.kernel.engine import make_core
from tenonry_testkit.targets import resolve_target

NUM_ENGINES = 2
NEWCOMER = NUM_ENGINES


class Engines:
    """Engines in this process, with the interface of a front end's. `asked`: indexes reached by any call."""

    def __init__(self, name: str, **config: Any) -> None:
        no_ports: Any = None  # no client is attached here
        self._name = name
        self.asked: list[int] = []
        self.engines = [
            EngineUtilities(make_core(index=index, **config), no_ports)
            for index in range(NUM_ENGINES + 1)
        ]

    async def call(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call every engine except the newcomer."""
        await asyncio.sleep(0)
        return [self._ask(index, method, args, kwargs) for index in range(NUM_ENGINES)]

    async def change(self, method: str, *args: Any) -> list[Any]:
        """Call every engine except the newcomer; there is no standby here."""
        return await self.call(method, *args)

    async def call_engine(self, index: int, method: str, *args: Any) -> Any:
        """Call one engine, such as the newcomer."""
        await asyncio.sleep(0)
        return self._ask(index, method, args, {})

    def _ask(self, index: int, method: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        self.asked.append(index)
        call = UtilityCall(1, f"{self._name}.{method}", list(args), kwargs)
        answered = answer(self.engines[index], call)
        if answered.failure is not None:
            raise EngineGenerateError(answered.failure)
        return answered.result


class CallSetContract:
    """Subclass in a test module and name the `call_set`; `options` are its own, `config` fields of EngineConfig.

    `calls`: methods of the front-end half with arguments, in an order in which all succeed. Engines run a fake worker;
    for calls of a worker name one in `config`.
    """

    call_set: ClassVar[str | type[CallSet] | None] = None
    options: ClassVar[dict[str, Any]] = {}
    config: ClassVar[dict[str, Any]] = {}
    calls: ClassVar[Sequence[tuple[str, Sequence[Any]]]] = ()

    # ------------------------------------------------------------------ tools, for tests of your own
    def build(self) -> tuple[CallSet, str]:
        """Build the call set like the kernel; returns it with its name."""
        cls, options, target = resolve_target("call_set", self.call_set, self.options)
        made: CallSet = cls(PluginContext(EngineConfig(model="fake"), options=options))
        return made, made.name or target

    def engines(self) -> Engines:
        """Engines with this call set."""
        made, name = self.build()
        target = f"{type(made).__module__}:{type(made).__qualname__}"
        choice = {"name": target, "options": self.options}
        if isinstance(self.call_set, str):
            choice["name"] = self.call_set
        return Engines(name, call_sets=[choice], **self.config)

    def front_end(self, engines: Engines) -> tuple[FrontEndHalf, set[str]]:
        """A front-end half over these engines, and its divergence."""
        divergence: set[str] = set()
        context = FrontEnd(None, engines, lambda *_: None, divergence)
        return self.build()[0].front_end_half(context), divergence

    async def play(self, half: FrontEndHalf) -> None:
        """Make all `calls`."""
        for method, args in self.calls:
            await getattr(half, method)(*args)

    def _run(self, main: Coroutine[Any, Any, Any]) -> None:
        asyncio.run(main)

    # ------------------------------------------------------------------ the contract
    def test_it_is_a_call_set_that_the_kernel_accepts(self) -> None:
        """It resolves, can be built, and has a name without a dot."""
        made, name = self.build()
        assert isinstance(made, CallSet)
        assert name
        assert "." not in name

    def test_engine_methods_are_annotated(self) -> None:
        """Plain values of structs are converted by annotations."""
        _, name = self.build()
        for method, bound in self.engines().engines[0].methods.items():
            if method.startswith(f"{name}."):
                for parameter in inspect.signature(bound).parameters.values():
                    assert parameter.annotation is not parameter.empty, f"{method}: {parameter}"

    def test_calls_are_coroutines_that_engines_answer(self) -> None:
        """Every public method of the front-end half is a coroutine; arguments and results are serialisable."""
        half, _ = self.front_end(self.engines())
        assert isinstance(half, FrontEndHalf)
        for name, function in inspect.getmembers(type(half), inspect.isfunction):
            is_static = isinstance(inspect.getattr_static(type(half), name), staticmethod)
            assert name[0] == "_" or is_static or inspect.iscoroutinefunction(function), name
        self._run(self.play(half))

    def test_nothing_is_asked_until_somebody_calls(self) -> None:
        """Halves are built before the engines respond."""
        engines = self.engines()
        self.front_end(engines)
        assert engines.asked == []

    def test_engines_that_join_are_brought_up_to_date(self) -> None:
        """Before and after the calls; serving engines are unaffected."""
        engines = self.engines()
        half, _ = self.front_end(engines)

        async def main() -> None:
            await half.on_join([NEWCOMER])
            await self.play(half)
            engines.asked.clear()
            await half.on_join([NEWCOMER])

        self._run(main())
        assert set(engines.asked) <= {NEWCOMER}

    def test_front_ends_differ_in_nothing_at_first(self) -> None:
        """Divergence begins with a call: otherwise no engine could ever be restarted."""
        _, divergence = self.front_end(self.engines())
        assert not divergence

    def test_it_has_a_blocking_half(self) -> None:
        """`LLM.calls[name]` is built from an engine in the process of its caller."""
        made, _ = self.build()
        made.blocking_half(None, make_core(call_sets=[], **self.config))
