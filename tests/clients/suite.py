"""Which clients are run, in which environment, as which client of which service."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Library:
    """A client library and the ways to use it, each of which is a client.

    Args:
        environment: Name of the file under ``requirements`` that says what is installed.
        variants: Told to the script, which takes them in turn: which of the services that the
            library knows is spoken to.
    """

    environment: str
    script: str
    variants: tuple[str, ...]

    def name(self, variant: str) -> str:
        return f"{self.environment} {variant}"

    @property
    def path(self) -> Path:
        return HERE / "scripts" / self.script

    @property
    def requirements(self) -> Path:
        return HERE / "requirements" / f"{self.environment}.txt"


def _library(environment: str, script: str, *variants: str) -> Library:
    return Library(environment, script, variants)


LIBRARIES: Final = (
    # those that take longest come first
    _library(
        "litellm",
        "litellm_rerank.py",
        "cohere",
        "hosted_vllm",
        "hosted_vllm under /vllm",
        "infinity",
        "jina_ai",
        "jina_ai under /jina",
        "huggingface",
        "voyage",
        "nvidia_nim",
    ),
    _library("openai", "openai_sdk.py", "decisions"),
    _library("cohere", "cohere_sdk.py", "v1", "v2"),
    _library("langchain-cohere", "langchain_cohere_rerank.py", "v2"),
    _library("llama-index", "llama_index_rerank.py", "cohere", "jina", "jina under /jina", "tei", "nvidia"),
    _library("haystack", "haystack_rankers.py", "cohere", "jina", "tei"),
    _library("voyageai", "voyageai_client.py", "voyage"),
    _library("infinity-client", "infinity_client_rerank.py", "infinity"),
    _library("rerankers", "rerankers_api.py", "cohere", "jina", "voyage", "text-embeddings-inference"),
)


def selected(parts: Collection[str]) -> list[Library]:
    """The libraries with those clients whose name holds one of ``parts``, or with all if there are none."""
    narrowed = [
        replace(library, variants=tuple(each for each in library.variants if _holds(library.name(each), parts)))
        for library in LIBRARIES
    ]
    return [library for library in narrowed if library.variants]


def _holds(name: str, parts: Collection[str]) -> bool:
    return not parts or any(part in name for part in parts)
