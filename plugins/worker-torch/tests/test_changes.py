"""Changes of attributes are undone in reverse order, whatever kind of object has them."""

from __future__ import annotations

import pytest
from torch import nn

from tenonry_worker_torch.changes import Changes


class Slotted:
    __slots__ = ("value",)

    def __init__(self):
        self.value = 1


def test_a_method_that_is_replaced_on_an_instance_is_the_class_s_again():
    module = nn.Linear(2, 2)
    changes = Changes()
    changes.set(module, "forward", lambda x: x)
    changes.undo()
    assert "forward" not in vars(module)


def test_attributes_modules_and_slots_are_restored_the_last_change_first():
    parent = nn.Sequential(nn.Identity())
    own, slotted, changes = parent[0], Slotted(), Changes()
    changes.set(parent, "0", nn.ReLU())
    changes.set(slotted, "value", 2)
    begin = len(changes)
    changes.set(slotted, "value", 3)
    changes.undo(begin)
    assert slotted.value == 2
    changes.undo()
    assert slotted.value == 1
    assert parent[0] is own


def test_all_changes_are_undone_where_one_raises():
    slotted, changes = Slotted(), Changes()
    changes.set(slotted, "value", 2)

    def fail():
        raise ValueError("no way back")

    changes.on_undo(fail)
    with pytest.raises(ValueError, match="no way back"):
        changes.undo()
    assert slotted.value == 1
    assert not len(changes)


def test_kept_changes_are_not_undone():
    slotted, changes = Slotted(), Changes()
    changes.set(slotted, "value", 2)
    changes.forget()
    changes.undo()
    assert slotted.value == 2
