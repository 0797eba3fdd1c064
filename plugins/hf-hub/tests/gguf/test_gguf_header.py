"""Headers of GGUF files: contents, and errors of broken or hostile ones."""

from __future__ import annotations

import itertools
import struct
import tracemalloc

import pytest
from gguf import GGML_QUANT_SIZES, GGUFReader
from gguf import GGMLQuantizationType as Kind
from hypothesis import given, settings
from hypothesis import strategies as st

from tenonry.errors import ModelError
from tenonry_hf_hub.gguf import header
from tenonry_hf_hub.gguf.header import is_gguf, read_header
from tenonry_hf_hub.gguf.tensors import read_tensors
from tenonry_hf_hub.gguf.types import TYPES
from tenonry_testkit.gguf_files import write

NO_TENSORS = 16  # where the number of tensors ends


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    return write(tmp_path_factory.mktemp("gguf") / "small.gguf", kind=Kind.Q8_0)


def test_tensors_stand_where_the_library_finds_them(model_file):
    found = read_header(model_file).tensors
    reader = GGUFReader(model_file)
    assert found.keys() == {tensor.name for tensor in reader.tensors}
    for tensor in reader.tensors:
        mine = found[tensor.name]
        assert mine.kind == tensor.tensor_type.name
        assert mine.shape == tuple(reversed(tensor.shape.tolist()))
        assert (mine.begin, mine.end - mine.begin) == (tensor.data_offset, tensor.n_bytes)


def test_types_are_those_of_the_library():
    known = {int(kind): (kind.name, *sizes) for kind, sizes in GGML_QUANT_SIZES.items()}
    assert {number: known[number] for number in TYPES if number in known} == {
        number: tuple(each) for number, each in TYPES.items() if number in known
    }
    assert {0, 1, 2, 3, 6, 7, 8, 12, 13, 14, 30} <= TYPES.keys() & known.keys()


def test_metadata_are_those_of_the_library(model_file):
    found = read_header(model_file).metadata
    reader = GGUFReader(model_file)
    for key, field in reader.fields.items():
        if key.startswith("GGUF."):
            continue
        contents = field.contents()
        if isinstance(contents, list):
            assert found[key].elements == len(contents)
        else:
            assert found[key] == contents


def test_a_file_is_known_by_its_name_or_its_first_bytes(tmp_path, model_file):
    plain = tmp_path / "weights"
    plain.write_bytes(model_file.read_bytes()[:64])
    assert is_gguf(plain)
    assert is_gguf(tmp_path / "missing.GGUF")
    other = tmp_path / "model.onnx"
    other.write_bytes(b"ONNX")
    assert not is_gguf(other)


@pytest.mark.parametrize(
    ("begin", "words"),
    [
        (b"", "does not begin with GGUF"),
        (b"PK\x03\x04", "does not begin with GGUF"),
        (b"GGUF", "in the middle of the version"),
        (b"GGUF" + struct.pack(">I", 3), "big-endian"),
        (b"GGUF" + struct.pack("<I", 1), "of version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "in the middle of tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "in the middle of metadata entries"),
    ],
)
def test_what_is_no_gguf_file_is_refused(begin, words, tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(begin)
    with pytest.raises(ModelError, match=words) as caught:
        read_header(path)
    assert str(path) in str(caught.value)


def entry(key: bytes, value: bytes) -> bytes:
    """A file of one metadata entry."""
    start = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    return start + struct.pack("<Q", len(key)) + key + value


@pytest.mark.parametrize(
    "value",
    [
        struct.pack("<IIQ", 9, 0, 1 << 62),  # bytes
        struct.pack("<IIQ", 9, 8, 1 << 40),  # texts
        struct.pack("<IIQ", 9, 9, 1 << 40) + b"\0" * 64,  # arrays
        struct.pack("<IQ", 8, 1 << 50),  # a text
        struct.pack("<I", 77) + b"\0" * 64,
    ],
)
def test_a_hostile_length_takes_neither_memory_nor_time(value, tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(entry(b"general.name", value))
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match=r"metadata entry general\.name"):
            read_header(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@given(size=st.integers(4, 300))
def test_a_header_is_the_same_in_pieces_of_any_size(size, model_file):
    wanted = read_header(model_file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(header, "CHUNK_BYTES", size)
        assert read_header(model_file) == wanted


def table_of(*tensors):
    """A file of tensors (offset, elements) in float32, with 4 KiB of data."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 0)
    for number, (offset, elements) in enumerate(tensors):
        head += struct.pack("<Q", 2) + f"t{number}".encode()
        head += struct.pack("<IQIQ", 1, elements, 0, offset % (1 << 64))
    return head + bytes(-len(head) % 32) + bytes(4096)


LIES = st.one_of(
    st.integers(0, 8192),
    st.sampled_from([-1, -32, 1 << 31, 1 << 32, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 4]),
)


@settings(deadline=None)
@given(
    tensors=st.lists(
        st.tuples(LIES, LIES.map(lambda size: size % (1 << 64))), min_size=1, max_size=4
    )
)
def test_tensors_past_the_end_or_on_each_other_are_named(tensors, tmp_path_factory):
    path = tmp_path_factory.mktemp("lie") / "lie.gguf"
    path.write_bytes(table_of(*tensors))
    spans = [(offset % (1 << 64), offset % (1 << 64) + 4 * size) for offset, size in tensors]
    is_inside = all(end <= 4096 for _, end in spans)
    ordered = sorted(spans)
    is_apart = all(left[1] <= right[0] for left, right in itertools.pairwise(ordered))
    if is_inside and is_apart:
        found = read_header(path)
        begins = [each.begin - found.size for each in found.tensors.values()]
        assert begins == [begin for begin, _ in spans]
        return
    words = (
        r"lie\.gguf: tensor t\d begins at byte" if is_inside else r"lie\.gguf .*tensor t\d ends at"
    )
    with pytest.raises(ModelError, match=words):
        read_header(path)


@settings(deadline=None)
@given(share=st.floats(0, 1))
def test_a_truncated_file_is_refused_by_what_it_lacks(share, model_file, tmp_path_factory):
    data = model_file.read_bytes()
    path = tmp_path_factory.mktemp("cut") / "cut.gguf"
    path.write_bytes(data[: int(share * (len(data) - 1))])
    with pytest.raises(ModelError, match=r"in the middle of|does not begin|truncated: tensor"):
        read_tensors(path)


@settings(deadline=None)
@given(
    flips=st.lists(st.tuples(st.integers(8, 12_000), st.integers(0, 255)), min_size=1, max_size=8)
)
@pytest.mark.slow
def test_a_damaged_header_is_read_or_refused(flips, model_file, tmp_path_factory):
    data = bytearray(model_file.read_bytes())
    for place, value in flips:
        data[place] = value
    path = tmp_path_factory.mktemp("bad") / "bad.gguf"
    path.write_bytes(data)
    try:
        found = read_tensors(path)
    except ModelError as error:
        assert str(path) in str(error)  # noqa: PT017  (both ends are right)
    else:
        assert all(tensor.end <= len(data) for tensor in found.values())
