"""Location of the weights and the KV cache of one rank. Worker process.

Level 1 of sleep frees the KV cache, and on a device moves the weights to main memory, from where they return to the
same module; on the CPU they are there already and stay. Level 2 frees both, and weights are read from their files again
when they are needed. Adapters stay in main memory. Nothing is computed until both are back: the engine sends no step
during sleep.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tenonry.errors import ConfigError
from tenonry_torch_base.memory import return_freed_memory
from tenonry_worker_torch.residency.offload import OffloadedModel
from tenonry_worker_torch.residency.plain import plain_weights
from tenonry_worker_torch.residency.reload import RankReload
from tenonry_worker_torch.residency.save import save_rank
from tenonry_worker_torch.residency.update import WeightUpdate

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from tenonry_worker_torch.adapters.registry import Adapters
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.loader import Loader
    from tenonry_worker_torch.loading.load import CheckpointInfo
    from tenonry_worker_torch.runner.runner import ModelRunner

WEIGHTS = "weights"
KV_CACHE = "kv_cache"
TAGS = (WEIGHTS, KV_CACHE)
LEVELS = (1, 2)


class Residency:
    """The model and the runner of one rank. `runner` is set when there is a KV cache."""

    def __init__(self, loader: Loader, found: CheckpointInfo) -> None:
        """Loads the model. Raises ModelError."""
        self._loader = loader
        self._found = found
        self._model: LoadedModel | None = loader.load(found)
        self._offloaded: OffloadedModel | None = None  # while it sleeps
        self._held: dict[str, torch.Tensor] = {}  # weights without a model
        self._has_cache = True
        self._wants_cache = True  # False in sleep; a failed update frees the cache as well
        self._runner: ModelRunner | None = None

    @property
    def model(self) -> LoadedModel:
        """Raises RuntimeError while the weights are away."""
        if self._model is None:
            raise RuntimeError("worker 'torch' sleeps: its weights are not there")
        return self._model

    @property
    def adapters(self) -> Adapters | None:
        """Return adapters, which stay in main memory during sleep; None if none are served."""
        return self._loader.adapters

    @property
    def is_sleeping(self) -> bool:
        """True if weights or KV cache are missing."""
        return self._model is None or not self._has_cache

    def serve(self, runner: ModelRunner) -> None:
        """The runner exists."""
        self._runner = runner

    # ------------------------------------------------------------------ sleep
    def sleep(self, level: int) -> None:
        """Free the memory of level 1 or 2; a sleeping rank may sleep deeper. Raises ConfigError for another level."""
        if level not in LEVELS:
            raise ConfigError(
                f"sleep level {level}: 1 keeps weights in main memory, 2 drops them; give 1 or 2"
            )
        if level == 2:
            self._refuse_spread("weights cannot be dropped and read again")
        self._wants_cache = False
        if self._has_cache:
            self._release_cache()
        if level == 2:
            self._held = {}
            self._offloaded = None
            self._forget_model()
        elif self._model is not None and self._model.device.type != "cpu":
            self._offload(self._model)
        return_freed_memory()

    def wake_up(self, tags: Sequence[str] | None) -> None:
        """Restore the memory named by `tags`, or all. Raises ConfigError for another tag, or a cache but no weights."""
        wanted = TAGS if tags is None else tags
        unknown = sorted(set(wanted).difference(TAGS))
        if unknown:
            raise ConfigError(f"tag {unknown[0]!r}: one of {', '.join(TAGS)} wakes up")
        if WEIGHTS in wanted and self._model is None:
            if not self._restore():
                self._make(None)
        if KV_CACHE in wanted and not self._has_cache:
            if self._model is None:
                raise ConfigError(
                    "the KV cache is made for weights that are there; wake 'weights' up first"
                )
            self._take_cache()

    def _refuse_spread(self, what: str) -> None:
        """Reject a call that engines that share experts would have to make together, with files of one."""
        if self._loader.parallel.experts is not None:
            raise ConfigError(
                f"enable_expert_parallel: {what} while engines share experts; start without it"
            )

    def _refuse_quantised(self, what: str) -> None:
        """Reject a call that needs floats, which were freed or never existed."""
        if self._found.quantised is not None:
            name = self._found.quantised.quantisation.name
            raise ConfigError(
                f"quantization={name}: {what}, since they are quantised; start with floats and without "
                "--quantization"
            )

    def _release_cache(self) -> None:
        self._has_cache = False
        if self._runner is not None:
            self._runner.release()

    def _take_cache(self) -> None:
        if self._runner is not None:
            self._runner.allocate()
        self._has_cache = True
        self._wants_cache = True

    def _offload(self, model: LoadedModel) -> None:
        if self.adapters is not None:
            self.adapters.vacate()
        self._offloaded = OffloadedModel(model)
        self._model = None

    def _restore(self) -> bool:
        """Restore offloaded weights; returns False without them."""
        if self._offloaded is None:
            return False
        self._model = self._offloaded.restore()
        self._offloaded = None
        return True

    def _forget_model(self) -> None:
        self._model = None
        if self.adapters is not None:
            self.adapters.unbind()
        if self._runner is not None:
            self._runner.forget_model()

    # ------------------------------------------------------------------ new weights
    def check_update(self, source: str, names: Sequence[str] | None) -> None:
        """Raise ModelError when an update would fail, as far as headers show. Nothing changes."""
        self._refuse_spread("weights cannot be replaced")
        self._refuse_quantised("weights cannot be replaced")
        update = WeightUpdate(source, names, self._found)
        reload = self._reload()
        reload.check(update)
        if self._model is None and self._offloaded is None:
            reload.kept(self._held, update.names)

    def update(self, source: str, names: Sequence[str] | None) -> None:
        """Replace weights. When it raises, this rank has no model until an update, or a wake-up, succeeds."""
        self._refuse_spread("weights cannot be replaced")
        self._refuse_quantised("weights cannot be replaced")
        update = WeightUpdate(source, names, self._found)
        if self._has_cache:
            self._release_cache()
        self._make(update)
        if self._wants_cache:
            self._take_cache()

    def save(self, source: str, folder: str, pattern: str | None, max_size: int | None) -> None:
        """Write this rank's weights into `folder`. `source`: the model's own. Raises ConfigError and OSError."""
        self._refuse_spread("files of ranks cannot be written")
        self._refuse_quantised("files of ranks cannot be written")
        model = self.model
        reload = self._reload()
        save_rank(
            model.module,
            reload.kept(plain_weights(model), set()),
            self._loader.parallel,
            source,
            folder,
            pattern,
            max_size,
        )

    def _make(self, update: WeightUpdate | None) -> None:
        """The model from held weights and an update; from its files, where nothing is held or replaced."""
        self._restore()
        new = set() if update is None else update.names
        reload = self._reload()
        held = self._held
        if self._model is not None:
            held = plain_weights(self._model, new - reload.in_ties)
        if not held and update is None:
            model = self._loader.load(self._found)
        else:
            held = self._held = reload.kept(held, new)
            self._forget_model()
            model = self._loader.reload(self._found, partial(reload.make, held, update))
        self._held = {}
        self._model = model
        if self._runner is not None:
            self._runner.adopt(model)

    def _reload(self) -> RankReload:
        return RankReload(self._found, self._loader.parallel)
