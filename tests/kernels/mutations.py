"""Known bugs of attention kernels, planted one at a time; each must turn a test red.

    python -m tests.kernels.mutations

Every bug is planted in a copy of ``kernels`` and ``tests/kernels``; the sources stay as they are. A bug of the
attention in C is planted where that runs.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kernels.native import load_native_ops

ROOT = Path(__file__).parents[2]
INTERPRETED = "tests/kernels/triton/interpreted"

# pytest's exit status when a test is red, and that of an address outside of the process, which is where a wrong
# offset may lead; an import error or an empty selection have others
_NOTICED = (1, -signal.SIGSEGV)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """``sound`` stands once in ``module``; ``broken`` takes its place; ``tests`` must notice.

    Args:
        native: ``tests`` run only where there is attention in C.
    """

    name: str
    module: str
    sound: str
    broken: str
    tests: str
    selection: str
    native: bool = False


MUTATIONS = (
    Mutation(
        name="drop the tail mask",
        module="kernels/triton/tree_attention.py",
        sound="real_keys = index < end",
        broken="real_keys = index >= first",
        tests=f"{INTERPRETED}/test_tree_attention.py",
        selection="test_prefix_and_suffix_lengths_around_a_tile and row_tokens0-15",
    ),
    Mutation(
        name="multiply slots in 32 bits",
        module="kernels/triton/tree_attention.py",
        sound="block = tl.load(block_ids_ptr + lookup // BLOCK_SIZE).to(tl.int64)",
        broken="block = tl.load(block_ids_ptr + lookup // BLOCK_SIZE)",
        tests=f"{INTERPRETED}/test_tree_attention.py",
        selection="test_b027_pool_offsets_beyond_31_bits_reach_their_slots",
    ),
    Mutation(
        name="spread the heads of a group over the KV heads",
        module="kernels/triton/tree_attention.py",
        sound="head = kv_head * GROUP + row % GROUP",
        broken="head = kv_head + row % GROUP * num_kv_heads",
        tests=f"{INTERPRETED}/test_contract.py",
        selection="test_attend_reads_the_right_kv_head_for_every_gqa_group and 2",
    ),
    Mutation(
        name="count the prefix again in every share of a split",
        module="kernels/triton/plan.py",
        sound="record[:, 0] += np.maximum(cut[0], 0) * geometry.tile_keys",
        broken="record[:, 0] += 0 * geometry.tile_keys",
        tests=f"{INTERPRETED}/test_tree_attention.py",
        selection="test_split_tiles_merge_to_the_same_result and plain",
    ),
    Mutation(
        name="scale the values of a quantised pool by the scales of its keys",
        module="kernels/triton/tree_attention.py",
        sound="weights *= tl.load(value_scales_ptr + slot)[None, :]",
        broken="weights *= tl.load(key_scales_ptr + slot)[None, :]",
        tests=f"{INTERPRETED}/test_contract.py",
        selection="test_attend_reads_codes_and_scales and plain and int8",
    ),
    Mutation(
        name="begin tiles of keys at every half of one",
        module="kernels/native/attention_work.c",
        sound='#include "attention_work.h"\n',
        broken='#include "attention_work.h"\n#undef TILE_KEYS\n#define TILE_KEYS 16\n',
        tests="tests/kernels/test_native_attention_bits.py",
        selection="test_a_row_has_the_same_bits_in_every_step and 9-3-64 and best",
        native=True,
    ),
)


def is_noticed(mutation: Mutation) -> bool:
    """Whether the tests fail on a copy that holds the bug."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for part in ("kernels", "tests/kernels"):
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        module = copy / mutation.module
        source = module.read_text()
        if source.count(mutation.sound) != 1:
            raise ValueError(
                f"{mutation.module}: 1 place of {mutation.sound!r} wanted, got {source.count(mutation.sound)}"
            )
        module.write_text(source.replace(mutation.sound, mutation.broken))
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", mutation.tests, "-k", mutation.selection],
            cwd=copy,
            # nothing here needs the plugins that happen to be installed
            env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            check=False,
        )
    return run.returncode in _NOTICED


def runs_here(mutation: Mutation) -> bool:
    if not mutation.native:
        return True
    native = load_native_ops()
    return native is not None and native.attention is not None


def main() -> int:
    survivors = 0
    for mutation in filter(runs_here, MUTATIONS):
        noticed = is_noticed(mutation)
        survivors += not noticed
        sys.stdout.write(f"{'noticed ' if noticed else 'SURVIVED'}  {mutation.name}\n")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
