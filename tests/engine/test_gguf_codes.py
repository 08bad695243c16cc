from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Encoding

from engine.gguf_codes import code_bits, read_codes

BITS = {
    Encoding.Q4_0: 4, Encoding.Q4_1: 4, Encoding.Q4_K: 4,
    Encoding.Q5_0: 8, Encoding.Q5_1: 8, Encoding.Q5_K: 8, Encoding.Q8_0: 8,
}  # fmt: skip


@pytest.mark.parametrize("encoding", BITS)
def test_scale_times_code_plus_offset_is_what_the_gguf_package_reads(encoding: Encoding) -> None:
    raw = np.random.default_rng(0).integers(0, 256, (400, gguf.GGML_QUANT_SIZES[encoding][1]), dtype=np.uint8)
    raw[:, 1:4:2] &= 0x3F  # the high bytes of scales: below infinity and not a number

    found = read_codes(raw, encoding)

    numbers = found.codes.astype(np.float32) * found.scales[:, None] + found.offsets[:, None]
    assert np.array_equal(numbers.ravel(), gguf.dequantize(raw, encoding).ravel())
    least, most = (0, 15) if BITS[encoding] == 4 else (-128, 127)
    assert least <= found.codes.min() < found.codes.max() <= most


def test_only_blocks_of_32_with_levels_evenly_apart_have_codes() -> None:
    assert {encoding: bits for encoding in Encoding if (bits := code_bits(encoding))} == BITS
