"""Compile every shipped kernel for every supported architecture and read what came out.

    python -m kernels.triton.report

Needs no GPU: Triton compiles ahead of time, and the tools that it ships read registers,
stack, shared memory and instructions from the binary. Ends with status 1 when a variant
spills, exceeds a limit, or misses the instructions that its launch is meant to reach.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.triton.variants import ARCHITECTURES, Variant, shipped

_CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+)")
_MAX_REGISTERS = 255

# bytes a program may use; sm_80 rows also serve consumer parts, which have 99 KiB
SHARED_LIMIT = {80: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024}

# mnemonics: matrix products of each generation, spills to local memory, asynchronous copies
MNEMONICS = {"HGMMA": r"HGMMA", "HMMA": r"HMMA", "UTCMMA": r"UTC\w*MMA", "spills": r"(?:STL|LDL)", "copies": r"LDGSTS"}
WIDEST_PRODUCT = {80: "HMMA", 90: "HGMMA", 100: "UTCMMA"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What the binary of one variant holds; ``counts`` has the keys of :data:`MNEMONICS`."""

    name: str
    arch: int
    bulk: bool
    registers: int
    stack_bytes: int
    shared_bytes: int
    counts: Mapping[str, int]

    def faults(self) -> list[str]:
        """Why this variant must not ship; empty when it may."""
        found = []
        if self.stack_bytes or self.counts["spills"]:
            found.append(f"{self.stack_bytes} B of stack, {self.counts['spills']} spill instructions; none allowed")
        if self.registers > _MAX_REGISTERS:
            found.append(f"{self.registers} registers; at most {_MAX_REGISTERS}")
        if self.shared_bytes > SHARED_LIMIT[self.arch]:
            found.append(f"{self.shared_bytes} B of shared memory; at most {SHARED_LIMIT[self.arch]}")
        if self.bulk:
            wanted = WIDEST_PRODUCT[self.arch]
            found += [f"no {name}" for name in (wanted, "copies") if not self.counts[name]]
        return found


def measure(variant: Variant) -> Measurement:
    """Compile one variant (seconds of one core) and read its binary."""
    compiled = triton.compile(
        _source(variant),
        target=GPUTarget("cuda", variant.arch, 32),
        options={"num_warps": variant.num_warps, "num_stages": variant.num_stages, "enable_fp_fusion": True},
    )
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "kernel.cubin"
        binary.write_bytes(compiled.asm["cubin"])
        resources = _RESOURCES.search(_dump(binary, "--dump-resource-usage"))
        code = _dump(binary, "--dump-sass")
    if resources is None:
        raise ValueError(f"{variant.name}: cuobjdump printed no resource usage")
    return Measurement(
        name=variant.name,
        arch=variant.arch,
        bulk=variant.bulk,
        registers=int(resources[1]),
        stack_bytes=int(resources[2]),
        shared_bytes=compiled.metadata.shared,
        counts={key: len(re.findall(rf"\b{pattern}\b", code)) for key, pattern in MNEMONICS.items()},
    )


def measure_all() -> list[Measurement]:
    """Every shipped variant of every architecture, over all processors."""
    # a forked child would inherit the state of Triton's compiler threads
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        jobs = [(arch, index) for arch in ARCHITECTURES for index in range(len(shipped(arch)))]
        return list(pool.map(_measure_job, jobs))


def table(measurements: Iterable[Measurement]) -> str:
    head = ["arch", "kernel", "regs", "stack", "shared", *MNEMONICS, "faults"]
    rows = [
        [
            f"sm_{m.arch}",
            m.name,
            str(m.registers),
            str(m.stack_bytes),
            str(m.shared_bytes),
            *(str(m.counts[key]) for key in MNEMONICS),
            "; ".join(m.faults()) or "-",
        ]
        for m in measurements
    ]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]
    )


def _measure_job(job: tuple[int, int]) -> Measurement:
    arch, index = job
    return measure(shipped(arch)[index])


def _source(variant: Variant) -> ASTSource:
    """The signature a launch would have: aligned pointers, and sizes that divide by 16."""
    signature, attributes = {}, {}
    for index, name in enumerate(variant.kernel.arg_names):
        if name in variant.constants:
            signature[name] = "constexpr"
        elif name.endswith("_ptr"):
            signature[name] = f"*{variant.pointers.get(name, variant.element)}"
            attributes[index,] = [["tt.divisibility", 16]]
        elif name in {"scale", "eps"}:
            signature[name] = "fp32"
        else:
            signature[name] = "i32"
            if name.endswith("_stride") or name == "width":
                attributes[index,] = [["tt.divisibility", 16]]
    return ASTSource(variant.kernel, signature, dict(variant.constants), attributes)


def _dump(binary: Path, option: str) -> str:
    run = subprocess.run([_CUOBJDUMP, option, binary], capture_output=True, text=True, check=True)  # noqa: S603 - Triton's own tool
    return run.stdout


def main() -> int:
    measurements = measure_all()
    sys.stdout.write(table(measurements) + "\n")
    faulty = [m for m in measurements if m.faults()]
    sys.stdout.write(f"{len(measurements)} variants, {len(faulty)} with faults\n")
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())
