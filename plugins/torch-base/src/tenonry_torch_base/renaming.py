"""Names of a checkpoint's tensors in the model, and their conversions by transformers. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Renaming:
    """The names of one model. `converters` rearrange tensors, such as experts that are stored one by one."""

    def __init__(self, model: PreTrainedModel) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming

        steps = get_model_conversion_mapping(model)
        self._renamings = [step for step in steps if isinstance(step, WeightRenaming)]
        self.converters = [step for step in steps if isinstance(step, WeightConverter)]
        self._converter_of = {
            pattern: step for step in self.converters for pattern in step.source_patterns
        }
        self._prefix = model.base_model_prefix
        self.names: dict[str, Any] = model.state_dict()

    def target(self, key: str) -> tuple[str, Any]:
        """Return the name in the model of the checkpoint's tensor `key`, and its converter, or None."""
        from transformers.core_model_loading import rename_source_key

        name, pattern = rename_source_key(
            key, self._renamings, self.converters, self._prefix, self.names
        )
        if name not in self.names and key in self.names:
            name, pattern = rename_source_key(key, [], [], self._prefix, self.names)
        return name, None if pattern is None else self._converter_of[pattern]
