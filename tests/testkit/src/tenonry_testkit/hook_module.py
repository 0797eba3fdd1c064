"""The conformance suite of hook modules: each rule of the hooks' page is a test. Test process.

from tenonry_testkit.hook_module import HookModuleContract

class TestMine(HookModuleContract):
    hook_module = "my_package.hooks"
    answers = {"scheduler": ["my-name"]}
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar

from tenonry.config import EngineConfig, PluginChoice
from tenonry.errors import ConfigError, PluginError, PluginFault, PluginNotFound, TenonryError
from tenonry.info import EngineInfo, ModelInfo, PluginRecord
from tenonry.plugin import hookspecs
from tenonry.plugin.kinds import HOOK_MODULES, KINDS, Kind
from tenonry.plugin.manager import PluginManager, resolve_point
from tenonry.plugin.plan import load_class
from tenonry_testkit.effects import watched

UNKNOWN = "a-name-that-nobody-has"
NO_MODEL = "./a-folder-that-is-not-there"


class HookModuleContract:
    """Subclass in a test module and name the `hook_module`: an entry point, the name of a module, or the module.

    `answers`: names that it resolves, by kind. `config`: fields of the configuration passed to it.
    """

    hook_module: ClassVar[str | ModuleType | None] = None
    answers: ClassVar[Mapping[str, Sequence[str]]] = {}
    config: ClassVar[dict[str, Any]] = {}

    # ------------------------------------------------------------------ tools, for tests of your own
    def module(self) -> ModuleType:
        """The hook module under test, imported."""
        if self.hook_module is None:
            raise TypeError(
                'this suite names nothing to test; add the line:  hook_module = "my_package.hooks"'
            )
        if isinstance(self.hook_module, ModuleType):
            return self.hook_module
        try:
            found: ModuleType = resolve_point(HOOK_MODULES, self.hook_module)[0]
        except PluginNotFound:
            found = importlib.import_module(self.hook_module)
        return found

    def manager(self) -> PluginManager:
        """A plugin manager with this hook module alone."""
        made = PluginManager(discover=False)
        made.register(self.module(), "under-test")
        return made

    def engine_config(self, **fields: Any) -> EngineConfig:
        """Return the configuration passed to hooks."""
        return EngineConfig(**{"model": "fake", **self.config, **fields})

    def hooks(self) -> dict[str, Callable[..., Any]]:
        """Its hook implementations, by name."""
        return {
            name: function
            for name, function in vars(self.module()).items()
            if hasattr(function, f"{hookspecs.PROJECT}_impl")
        }

    def ask(self, kind: Kind, name: str, config: EngineConfig | None = None) -> Any:
        """Call its choosing hook of a kind; None without one."""
        function = self.hooks().get(kind.hook)
        return function and _called(function, name=name, config=config or self.engine_config())

    def _questions(self) -> Iterator[tuple[Kind, str]]:
        """Yield each kind that it chooses, with the names of known plugins and its own."""
        for kind in KINDS.values():
            if kind.hook in self.hooks():
                for name in (*kind.provider, "auto", "plain", *self.answers.get(kind.kind, ())):
                    yield kind, name

    # ------------------------------------------------------------------ the contract
    def test_it_is_a_hook_module_that_the_kernel_accepts(self) -> None:
        """Hooks are spelt correctly, with known arguments."""
        self.manager()

    def test_it_implements_a_hook(self) -> None:
        """Functions without the marker `tenonry.hookimpl` are never called."""
        assert self.hooks(), "it has no function with the marker hookimpl"
        for name, function in vars(self.module()).items():
            if name.startswith("tenonry_") and inspect.isfunction(function):
                assert name in self.hooks(), f"{name} lacks the marker hookimpl"

    def test_names_of_others_are_left_to_others(self) -> None:
        """The result for an unknown name is None."""
        for kind in KINDS.values():
            answer = self.ask(kind, UNKNOWN)
            assert answer is None, f"{kind.hook} answers {answer!r} for a name that is not its own"

    def test_answers_name_plugins_of_their_kind(self) -> None:
        """Results are "module:Class", importable, and implement the interface of the hook."""
        for kind, name in self._questions():
            answer = self.ask(kind, name)
            if answer is not None:
                assert isinstance(answer, str), f"{kind.hook} answers {answer!r}, which is no text"
                assert ":" in answer, f"{kind.hook} answers {answer!r}; write module:Class"
                load_class(PluginRecord(kind.kind, name, answer))

    def test_it_answers_its_own_names(self) -> None:
        """The resolver finds a plugin for each name of `answers`."""
        for kind, names in self.answers.items():
            for name in names:
                config = self.engine_config()
                found = self.manager().resolve(kind, PluginChoice(name=name), config)
                assert found.target == self.ask(KINDS[kind], name, config)

    def test_the_same_question_has_the_same_answer(self) -> None:
        """Hooks are called whenever settings are read, several times per start."""
        questions = list(self._questions())
        first = [self.ask(*question) for question in questions]
        for _ in range(3):
            assert [self.ask(*question) for question in reversed(questions)][::-1] == first

    def test_choosing_has_no_effects(self) -> None:
        """Help and completion call hooks, too: no files, sockets, processes, output, variables or threads."""
        for kind, name in [*self._questions(), *((kind, UNKNOWN) for kind in KINDS.values())]:
            self.ask(kind, name)  # imports may read files once
            with watched() as effects:
                self.ask(kind, name)
            assert not effects, f"{kind.hook}: {effects}"

    def test_a_configuration_is_accepted_or_rejected(self) -> None:
        """`tenonry_configured` raises ConfigError or PluginError to reject one, and accepts that of the suite."""
        manager = self.manager()
        manager.call("tenonry_configured", config=self.engine_config())
        for fields in ({"max_num_seqs": 1}, {"max_num_seqs": 2000}, {"tensor_parallel_size": 2}):
            try:
                manager.call("tenonry_configured", config=self.engine_config(**fields))
            except (ConfigError, PluginError) as error:
                assert not isinstance(error, PluginFault), str(error)
                assert str(error).partition(" (tenonry_configured")[0].strip(), "no reason is named"

    def test_a_model_that_is_not_its_own_is_left_or_rejected(self) -> None:
        """`tenonry_resolve_model` returns a ModelInfo or None, or raises ModelError."""
        function = self.hooks().get("tenonry_resolve_model")
        if function is None:
            return
        try:
            answer = _called(function, config=self.engine_config(model=NO_MODEL))
        except TenonryError:
            return
        assert answer is None or isinstance(answer, ModelInfo), f"it answers {answer!r}"

    def test_it_is_told_that_engines_are_ready(self) -> None:
        """`tenonry_engine_ready` accepts the facts of any engine."""
        info = EngineInfo(
            model="fake",
            served_model_name="fake",
            max_model_len=64,
            num_gpu_blocks=10,
            block_size=16,
            plugins=(),
            tasks={},
            usage={},
        )
        self.manager().call("tenonry_engine_ready", info=info)

    def test_it_says_whether_it_is_idle(self) -> None:
        """`is_idle`, if present, has no argument and returns a bool."""
        is_idle = getattr(self.module(), "is_idle", bool)
        assert isinstance(is_idle(), bool), f"is_idle returns {is_idle()!r}"


def _called(function: Callable[..., Any], **arguments: Any) -> Any:
    """Call with its accepted arguments, as pluggy does."""
    return function(
        **{
            name: value
            for name, value in arguments.items()
            if name in inspect.signature(function).parameters
        }
    )
