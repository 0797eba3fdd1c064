"""The active features of a runner in order, with the hooks that they override. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from tenonry.interfaces.plugin import NO_OPTIONS
from tenonry.plugin.checks import load_options
from tenonry.plugin.manager import blamed
from tenonry_worker_torch.runner.feature import RunnerFeature, Split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tenonry.info import PluginRecord
    from tenonry_worker_torch.runner.feature import RunnerContext

F = TypeVar("F", bound=RunnerFeature)


class FeatureList:
    """Features that are active in a runner. Each hook is a tuple of bound methods, empty if no feature overrides it."""

    def __init__(
        self,
        context: RunnerContext,
        kinds: Sequence[type[RunnerFeature]],
        installed: Sequence[tuple[type[RunnerFeature], PluginRecord]] = (),
    ) -> None:
        """Construct features. `kinds`: built-in ones, in order. `installed`: those of other packages, after them.
        Raises PluginFault for one whose constructor fails.
        """
        self._features: list[tuple[RunnerFeature, PluginRecord | None]] = [
            (kind(context), None) for kind in kinds if kind.is_active(context)
        ]
        for kind, record in installed:
            context.options = load_options(record, kind)
            with blamed(record, "its constructor"):
                if kind.is_active(context):
                    self._features.append((kind(context), record))
            context.options = NO_OPTIONS
        self.enter = self._hooks("enter")
        self.leave = self._hooks("leave")
        self.prepare = self._hooks("prepare")
        self.before_sampling = self._hooks("before_sampling")
        self.after = self._hooks("after")
        self.dummy = self._hooks("dummy")
        self.allocate = self._hooks("allocate")
        self.release = self._hooks("release")
        self.adopt = self._hooks("adopt")
        self.shutdown = self._hooks("shutdown")
        self.split = min((each.split for each in self), default=Split.ANYWHERE)
        self.sees_decodes = any(each.sees_decodes for each in self)
        self.needs_hidden = any(each.needs_hidden for each in self)

    def __iter__(self) -> Iterator[RunnerFeature]:
        return (feature for feature, _ in self._features)

    def of(self, kind: type[F]) -> F:
        """The active feature of a class. Raises LookupError."""
        for feature in self:
            if isinstance(feature, kind):
                return feature
        raise LookupError(f"the runner has no active feature {kind.__name__}")

    def _hooks(self, name: str) -> tuple[Callable[..., None], ...]:
        return tuple(
            _named(getattr(feature, name), record, name)
            for feature, record in self._features
            if getattr(type(feature), name) is not getattr(RunnerFeature, name)
        )


def _named(
    hook: Callable[..., None], record: PluginRecord | None, name: str
) -> Callable[..., None]:
    """Return the hook itself, or one with errors that name its package."""
    if record is None:
        return hook

    def call(*given: Any) -> None:
        with blamed(record, name):
            hook(*given)

    return call
