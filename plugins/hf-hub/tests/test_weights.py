"""Selection of weight files; other formats and paths out of the folder are rejected."""

from __future__ import annotations

import json

import pytest

from tenonry.errors import ModelError
from tenonry_hf_hub import check_present, find_weights, list_weights


def write_index(folder, weight_map):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_index_lists_each_file_once(tmp_path):
    for name in ("model-00001.safetensors", "model-00002.safetensors", "other.safetensors"):
        (tmp_path / name).touch()
    weight_map = {
        "a": "model-00002.safetensors",
        "b": "model-00001.safetensors",
        "c": "model-00002.safetensors",
    }
    write_index(tmp_path, weight_map)
    found = list_weights(tmp_path)
    assert [path.name for path in found.files] == [
        "model-00001.safetensors",
        "model-00002.safetensors",
    ]
    assert found.weight_map == weight_map


def test_missing_shard_is_named(tmp_path):
    (tmp_path / "a.safetensors").touch()
    write_index(tmp_path, {"a": "a.safetensors", "b": "b.safetensors"})
    with pytest.raises(ModelError, match=r"lacks 1 of the 2 weight files .*b\.safetensors"):
        list_weights(tmp_path)


def test_a_missing_shard_matters_where_it_holds_what_is_needed(tmp_path):
    (tmp_path / "a.safetensors").touch()
    write_index(tmp_path, {"text": "a.safetensors", "tower": "b.safetensors"})
    found = find_weights(tmp_path)
    assert [path.name for path in found.files] == ["a.safetensors"]
    assert found.absent == ("b.safetensors",)
    check_present(tmp_path, found, ["text", "of another name"])
    with pytest.raises(ModelError, match=r"lacks 1 of the 2 weight files .*\(b\.safetensors\)"):
        check_present(tmp_path, found, ["text", "tower"])
    (tmp_path / "a.safetensors").unlink()
    with pytest.raises(ModelError, match=r"lacks 2 of the 2 .*\(a\.safetensors, b\.safetensors\)"):
        find_weights(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "../x.safetensors",
        "/etc/x.safetensors",
        "a/b.safetensors",
        "..\\x.safetensors",
        ".x.safetensors",
        "x.bin",
        3,
        "a\0.safetensors",
    ],
)
def test_index_cannot_point_elsewhere(tmp_path, name):
    """Class K of the reliability rules: a weight map is data, not a path to follow."""
    write_index(tmp_path, {"a": name})
    with pytest.raises(ModelError, match="which is not a"):
        list_weights(tmp_path)


@pytest.mark.parametrize("weight_map", [{}, [], None])
def test_index_without_a_map_is_refused(tmp_path, weight_map):
    write_index(tmp_path, weight_map)
    with pytest.raises(ModelError, match="no weight_map"):
        list_weights(tmp_path)


def names(found):
    return [path.name for path in found.files]


def touch(folder, *files):
    for name in files:
        (folder / name).touch()


@pytest.mark.parametrize("weight_map", [{}, [], None, {"a": "old-00001-of-00001.safetensors"}])
def test_files_beside_an_index_of_other_files_are_the_model(tmp_path, weight_map):
    """The model was saved again, in other shards, next to an older index."""
    touch(tmp_path, "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    write_index(tmp_path, weight_map)
    found = list_weights(tmp_path)
    assert names(found) == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert found.weight_map is None
    assert "model.safetensors.index.json" in found.note
    assert "is not used" in found.note


def test_a_single_file_wins_over_an_index_and_its_shards(tmp_path):
    touch(tmp_path, "model.safetensors", "model-00001-of-00001.safetensors")
    write_index(tmp_path, {"a": "model-00001-of-00001.safetensors"})
    found = list_weights(tmp_path)
    assert names(found) == ["model.safetensors"]
    assert found.note.startswith("model.safetensors hold the weights; model.safetensors.index.json")
    assert "model-00001-of-00001.safetensors beside them are not read" in found.note


def test_files_that_the_index_does_not_name_are_not_read(tmp_path):
    touch(tmp_path, "a.safetensors", "stray.safetensors")
    write_index(tmp_path, {"a": "a.safetensors"})
    found = list_weights(tmp_path)
    assert names(found) == ["a.safetensors"]
    assert "stray.safetensors beside them are not read" in found.note


@pytest.mark.parametrize("chosen", ["special.safetensors", "special.safetensors.index.json"])
def test_config_json_may_name_the_file(tmp_path, chosen):
    touch(tmp_path, "model.safetensors", "special.safetensors", "part.safetensors")
    index = {"weight_map": {"a": "part.safetensors"}}
    (tmp_path / "special.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_text(json.dumps({"transformers_weights": chosen}))
    is_index = chosen.endswith(".json")
    assert names(list_weights(tmp_path)) == ["part.safetensors" if is_index else chosen]
    (tmp_path / "special.safetensors").unlink()
    (tmp_path / "special.safetensors.index.json").unlink()
    with pytest.raises(ModelError, match=f"names {chosen} .transformers_weights., which is not"):
        list_weights(tmp_path)


@pytest.mark.parametrize("chosen", ["../model.safetensors", "a/b.safetensors", "model.bin", 3])
def test_config_json_cannot_name_a_file_elsewhere(tmp_path, chosen):
    touch(tmp_path, "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"transformers_weights": chosen}))
    with pytest.raises(ModelError, match="which is not a"):
        list_weights(tmp_path)


def test_shards_without_an_index_are_all_there_or_named(tmp_path):
    touch(tmp_path, "model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors")
    with pytest.raises(ModelError, match=r"lacks model-00002-of-00003\.safetensors, 1 of the 3"):
        list_weights(tmp_path)
    touch(tmp_path, "model-00002-of-00003.safetensors")
    assert len(list_weights(tmp_path).files) == 3


def test_single_file_wins_over_strays(tmp_path):
    for name in ("model.safetensors", "adapter_model.safetensors", "consolidated.safetensors"):
        (tmp_path / name).touch()
    assert [path.name for path in list_weights(tmp_path).files] == ["model.safetensors"]


def test_without_index_all_plain_files_count(tmp_path):
    for name in ("b.safetensors", "a.safetensors", "consolidated.00.safetensors"):
        (tmp_path / name).touch()
    assert [path.name for path in list_weights(tmp_path).files] == [
        "a.safetensors",
        "b.safetensors",
    ]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["pytorch_model.bin"], "only pytorch_model.bin, which cannot be loaded"),
        (["small.gguf", "adapter_model.safetensors"], "only adapter_model.safetensors, small.gguf"),
        (["notes.txt"], "no weights of any kind"),
    ],
)
def test_other_formats_are_named_with_the_remedy(tmp_path, names, words):
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(ModelError, match=words) as caught:
        list_weights(tmp_path)
    is_pickled = "pytorch_model.bin" in names
    assert (f"tenonry models convert {tmp_path} " in str(caught.value)) == is_pickled
    assert "dummy" in str(caught.value)
