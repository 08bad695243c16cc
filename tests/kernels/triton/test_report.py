"""The ahead-of-time gate: what ships neither spills nor misses the matrix instructions."""

from __future__ import annotations

import pytest

from kernels.api import KernelInputError
from kernels.triton.report import MNEMONICS, SHARED_LIMIT, Measurement, measure_all, table
from kernels.triton.tuning import LaunchKey, choose_launch
from kernels.triton.variants import ARCHITECTURES, shipped


@pytest.fixture(scope="module")
def measurements() -> list[Measurement]:
    return measure_all()


def measurement(**changes: object) -> Measurement:
    fields: dict[str, object] = {
        "name": "k",
        "arch": 90,
        "bulk": True,
        "registers": 200,
        "stack_bytes": 0,
        "shared_bytes": 1000,
        "counts": {"HGMMA": 8, "HMMA": 0, "UTCMMA": 0, "spills": 0, "copies": 4},
        **changes,
    }
    return Measurement(**fields)  # type: ignore[arg-type]


def test_no_shipped_variant_spills_or_misses_its_instructions(measurements: list[Measurement]) -> None:
    faults = {f"sm_{m.arch} {m.name}": m.faults() for m in measurements if m.faults()}

    assert faults == {}, "\n" + table(measurements)


def test_every_architecture_ships_a_bulk_attention_on_its_widest_products(measurements: list[Measurement]) -> None:
    for arch, product in ((80, "HMMA"), (90, "HGMMA"), (100, "UTCMMA")):
        bulk = [m for m in measurements if m.arch == arch and m.bulk]

        assert len(bulk) >= 3
        assert all(m.counts[product] for m in bulk)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"stack_bytes": 16}, "16 B of stack, 0 spill instructions; none allowed"),
        ({"counts": {**dict.fromkeys(MNEMONICS, 1), "spills": 3}}, "0 B of stack, 3 spill instructions; none allowed"),
        ({"registers": 256}, "256 registers; at most 255"),
        ({"shared_bytes": SHARED_LIMIT[90] + 1}, "232449 B of shared memory; at most 232448"),
        ({"counts": {**dict.fromkeys(MNEMONICS, 0), "HMMA": 9, "copies": 4}}, "no HGMMA"),
        ({"counts": {**dict.fromkeys(MNEMONICS, 0), "HGMMA": 9}}, "no copies"),
    ],
)
def test_each_fault_is_named(changes: dict[str, object], fault: str) -> None:
    assert measurement().faults() == []
    assert measurement(**changes).faults() == [fault]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_variants_have_names_of_their_own(arch: int) -> None:
    names = [variant.name for variant in shipped(arch)]

    assert len(names) == len(set(names))


@pytest.mark.parametrize("arch", [80, 86, 89, 90, 100, 103, 120])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("element_bytes", [2, 4])
@pytest.mark.parametrize("group", [1, 7, 16])
def test_the_table_serves_every_supported_shape(arch: int, head_dim: int, element_bytes: int, group: int) -> None:
    for rows in (1, 33, 100_000):
        key = LaunchKey(
            arch=arch, head_dim=head_dim, element_bytes=element_bytes, group=group, rows=rows, longest_span=1000
        )

        assert choose_launch(key).tile_rows >= group


@pytest.mark.parametrize(("arch", "head_dim"), [(75, 64), (90, 288)])
def test_b028_a_shape_beyond_the_table_is_refused_with_its_numbers(arch: int, head_dim: int) -> None:
    key = LaunchKey(arch=arch, head_dim=head_dim, element_bytes=2, group=1, rows=1, longest_span=1)

    with pytest.raises(KernelInputError, match=rf"no attention launch for arch {arch}, head size {head_dim}, 1 query"):
        choose_launch(key)
