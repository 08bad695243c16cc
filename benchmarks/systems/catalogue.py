"""Which systems can be measured on what; known without loading any."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

ALL_WORKLOADS: Final = ("W1", "W2", "W3", "W4", "W5", "W6", "W7", "SWEEP", "MEMORY")


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemSpec:
    """A system of a run.

    Args:
        name: As it is reported; of our own variants, ``ours-`` and a word.
        kind: Which code drives it.
        options: Settings, as text.
        workloads: What it is measured on.
        most_tokens: A phase is cut to about so many prompt tokens for a system without reuse.
    """

    name: str
    kind: str
    workloads: frozenset[str]
    options: dict[str, str] = field(default_factory=dict)
    most_tokens: int | None = None


_COMMON: Final = frozenset({"W1", "W2", "W3", "W4", "W5", "SWEEP"})

TITLES: Final = {
    "ours": "this project's engine, in process, token ids",
    "ours-int8": "this project's engine with feed-forward parts in 8 bits, in process, token ids",
    "ours-http": "this project's service over HTTP, texts",
    "hf-prefix": "transformers, past_key_values of a prefix computed once and expanded",
    "hf-pad": "transformers, whole prompts in padded batches (cut to its first rows)",
    "llamacpp": "llama.cpp server (--llamacpp URL or --llamacpp-start COMMAND)",
    "vllm": "vLLM server (--vllm URL or --vllm-start COMMAND)",
}

SPECS: Final = {
    spec.name: spec
    for spec in (
        SystemSpec(name="ours", kind="ours", workloads=frozenset(ALL_WORKLOADS)),
        SystemSpec(name="ours-int8", kind="ours", workloads=_COMMON - {"SWEEP"}, options={"linear_dtype": "int8"}),
        SystemSpec(name="ours-http", kind="ours-http", workloads=_COMMON | {"W7", "MEMORY"}),
        SystemSpec(name="hf-prefix", kind="hf-prefix", workloads=_COMMON),
        SystemSpec(name="hf-pad", kind="hf-pad", workloads=frozenset({"W1", "W2", "W3", "W5"}), most_tokens=10_000),
        SystemSpec(name="llamacpp", kind="llamacpp", workloads=_COMMON | {"W7"}),
        SystemSpec(name="vllm", kind="vllm", workloads=_COMMON | {"W7"}),
    )
}
