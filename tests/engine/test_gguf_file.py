from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter

from engine.errors import CheckpointError
from engine.gguf_file import read_gguf_header


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def header(*, version: int = 3, tensors: int = 0, values: int = 0, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, values) + rest


def tensor(name: str, dimensions: tuple[int, ...], encoding: int, offset: int = 0) -> bytes:
    count = len(dimensions)
    return text(name) + struct.pack(f"<I{count}QIQ", count, *dimensions, encoding, offset)


@pytest.fixture(params=[32, 64, 4096])
def sample(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    writer = GGUFWriter(tmp_path / "sample.gguf", "llama")
    writer.add_custom_alignment(request.param)
    writer.add_uint8("a.u8", 200)
    writer.add_int8("a.i8", -100)
    writer.add_uint16("a.u16", 60_000)
    writer.add_int16("a.i16", -30_000)
    writer.add_uint32("a.u32", 4_000_000_000)
    writer.add_int32("a.i32", -2_000_000_000)
    writer.add_uint64("a.u64", 2**63)
    writer.add_int64("a.i64", -(2**62))
    writer.add_float32("a.f32", 0.1)
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.bool", val=True)
    writer.add_string("a.text", "naïve 🤷")
    writer.add_array("a.texts", ["Ġt", "中", "x" * 300])
    writer.add_array("a.numbers", [1, 2, -3])
    writer.add_array("a.reals", [0.5, -0.25])
    for number, encoding in enumerate([GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0]):
        values = np.zeros((3, 34 if encoding == GGMLQuantizationType.Q8_0 else 5), np.uint8)
        stored = values if encoding == GGMLQuantizationType.Q8_0 else values.astype(np.float32)
        writer.add_tensor(f"t{number}", stored, raw_dtype=encoding)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "sample.gguf"


def test_metadata_of_every_type_agrees_with_the_reader_of_the_gguf_package(sample: Path) -> None:
    judge = {
        name: field.contents() for name, field in GGUFReader(sample).fields.items() if not name.startswith("GGUF.")
    }

    assert dict(read_gguf_header(sample).metadata) == judge
    assert len(judge) == 17


def test_tensors_lie_where_the_reader_of_the_gguf_package_finds_them(sample: Path) -> None:
    judge = {each.name: each for each in GGUFReader(sample).tensors}

    tensors = read_gguf_header(sample).tensors

    assert tensors.keys() == judge.keys()
    for name, each in tensors.items():
        assert (each.offset, each.num_bytes) == (judge[name].data_offset, judge[name].n_bytes)
        assert each.encoding == judge[name].tensor_type
        assert each.shape == tuple(reversed(judge[name].shape.tolist()))


@pytest.mark.parametrize("keep", [1, 4, 7, 20, 60, 150, 400, 700])
def test_a_header_that_is_cut_short_is_refused_with_both_sizes(sample: Path, keep: int) -> None:
    sample.write_bytes(sample.read_bytes()[:keep])

    with pytest.raises(CheckpointError, match=r"sample\.gguf (is cut short|is not a GGUF file)"):
        read_gguf_header(sample)


def test_tensor_data_that_are_cut_short_are_refused_by_the_tensor(sample: Path) -> None:
    last = read_gguf_header(sample).tensors["t1"]
    end = last.offset + last.num_bytes
    sample.write_bytes(sample.read_bytes()[:end])
    assert read_gguf_header(sample).tensors["t1"] == last

    sample.write_bytes(sample.read_bytes()[: end - 1])

    with pytest.raises(CheckpointError, match=r"is cut short: tensor t1 ends at byte [\d,]+, the file has [\d,]+"):
        read_gguf_header(sample)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "cannot be read"),
        (b"\x80\x02}q\x00.", "is not a GGUF file"),
        (header(version=1), "is GGUF version 1"),
        (header(version=3 << 24), "in little-endian order"),
        (header(values=1, rest=text("a.b") + struct.pack("<I", 13)), "a.b has value type 13"),
        (header(values=1, rest=text("a.b") + struct.pack("<IIQ", 9, 9, 0)), "a.b has value type 9"),
        (header(values=2, rest=2 * (text("a.b") + struct.pack("<II", 4, 1))), "the metadata field a.b twice"),
        (header(values=1, rest=struct.pack("<Q", 2) + b"\xff\xff"), "is not UTF-8"),
        (header(values=1, rest=struct.pack("<Q", 2**63)), "is cut short"),
        (header(values=2**60), "is cut short"),
        (header(values=1, rest=text("a") + struct.pack("<IIQ", 9, 8, 2**60)), "is cut short"),
        (header(values=1, rest=text("a") + struct.pack("<IIQ", 9, 10, 2**60)), "is cut short"),
        (header(tensors=2**60), "is cut short"),
        (header(tensors=1, rest=tensor("t", (2,) * 5, 0)), "t has 5 dimensions"),
        (header(tensors=1, rest=tensor("t", (), 0)), "t has 0 dimensions"),
        (header(tensors=1, rest=tensor("t", (8,), 99)), "t has encoding 99"),
        (header(tensors=1, rest=tensor("t", (31,), 8)), "rows of tensor t hold 31 elements; Q8_0"),
        (header(tensors=1, rest=tensor("t", (2**40, 2**40), 0)), "is cut short: tensor t"),
        (header(tensors=1, rest=tensor("t", (1,), 0, 2**62)), "is cut short: tensor t"),
        (header(tensors=2, rest=2 * tensor("t", (1,), 0) + bytes(64)), "lists tensor t twice"),
        (
            header(values=1, rest=text("general.alignment") + struct.pack("<II", 4, 24)),
            "general.alignment is 24; a power of two",
        ),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)

    with pytest.raises(CheckpointError, match=said):
        read_gguf_header(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"absent\.gguf cannot be read"):
        read_gguf_header(tmp_path / "absent.gguf")
