"""Rows BF-6 and Q16: a read-only face for a list."""

from __future__ import annotations

import pytest

from tenonry_torch_base.constant_list import ConstantList

ITEMS = [3, 1, 4, 1, 5, 9, 2, 6]
MUTATIONS = {
    "append": (7,),
    "extend": ([7],),
    "insert": (0, 7),
    "pop": (),
    "remove": (3,),
    "clear": (),
    "sort": (),
    "reverse": (),
    "__setitem__": (0, 7),
    "__delitem__": (0,),
    "__iadd__": ([7],),
    "__imul__": (2,),
}


class TestReading:
    """BF-6: the whole read API of a list."""

    def test_behaves_like_the_list_it_wraps(self):
        view = ConstantList(ITEMS)
        assert [view[0], view[-1], view[2:5], view[::2]] == [3, 6, [4, 1, 5], [3, 4, 5, 2]]
        assert list(view) == list(iter(view)) == ITEMS
        assert len(view) == 8
        assert 9 in view
        assert 7 not in view
        assert view.count(1) == 2
        assert list(reversed(view)) == ITEMS[::-1]

    @pytest.mark.parametrize("bounds", [(1,), (1, 2), (1, 2, 4), (1, -6), (1, 0, -5)])
    def test_index_takes_start_and_stop_as_a_list_does(self, bounds):
        assert ConstantList(ITEMS).index(*bounds) == ITEMS.index(*bounds)

    @pytest.mark.parametrize("bounds", [(7,), (9, 0, 3), (3, 1)])
    def test_index_of_a_missing_value_raises_as_a_list_does(self, bounds):
        for items in (ITEMS, ConstantList(ITEMS)):
            with pytest.raises(ValueError, match="is not in list"):
                items.index(*bounds)

    def test_repr_names_the_class(self):
        assert repr(ConstantList([1, 2])) == "ConstantList([1, 2])"

    def test_later_changes_of_the_list_are_seen(self):
        items = [1]
        view = ConstantList(items)
        items.append(2)
        assert list(view) == [1, 2]

    def test_a_slice_is_a_copy(self):
        items = [1, 2]
        ConstantList(items)[:].append(3)
        assert items == [1, 2]


class TestMutations:
    """BF-6: every one raises TypeError. Q16: whatever the number of arguments."""

    @pytest.mark.parametrize("name", MUTATIONS)
    def test_raises_type_error_and_changes_nothing(self, name):
        items = list(ITEMS)
        with pytest.raises(TypeError, match="read-only"):
            getattr(ConstantList(items), name)(*MUTATIONS[name])
        assert items == ITEMS

    @pytest.mark.parametrize("arguments", [(), (1,), (1, 2), (1, 2, 3)])
    @pytest.mark.parametrize("name", ["insert", "pop"])
    def test_insert_and_pop_refuse_any_number_of_arguments(self, name, arguments):
        with pytest.raises(TypeError, match="read-only"):
            getattr(ConstantList(ITEMS), name)(*arguments)

    def test_operators_and_statements_are_refused(self):
        view = ConstantList(list(ITEMS))
        with pytest.raises(TypeError, match="read-only"):
            view[0] = 1
        with pytest.raises(TypeError, match="read-only"):
            del view[0]
        with pytest.raises(TypeError, match="read-only"):
            view += [1]
