"""Which clients are run, in which environment, as which client of which service."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Client:
    """One way to use one client library.

    Args:
        environment: Name of the file under ``requirements`` that says what is installed.
        variant: Told to the script: which of the services that the library knows is spoken to.
    """

    environment: str
    script: str
    variant: str

    @property
    def name(self) -> str:
        return f"{self.environment} {self.variant}"

    @property
    def path(self) -> Path:
        return HERE / "scripts" / self.script

    @property
    def requirements(self) -> Path:
        return HERE / "requirements" / f"{self.environment}.txt"


def _variants(environment: str, script: str, *variants: str) -> tuple[Client, ...]:
    return tuple(Client(environment, script, variant) for variant in variants)


CLIENTS: Final = (
    *_variants("cohere", "cohere_sdk.py", "v1", "v2"),
    *_variants("langchain-cohere", "langchain_cohere_rerank.py", "v2"),
    *_variants("llama-index", "llama_index_rerank.py", "cohere", "jina", "jina under /jina", "tei", "nvidia"),
    *_variants("haystack", "haystack_rankers.py", "cohere", "jina", "tei"),
    *_variants(
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
    *_variants("voyageai", "voyageai_client.py", "voyage"),
    *_variants("infinity-client", "infinity_client_rerank.py", "infinity"),
    *_variants("openai", "openai_sdk.py", "decisions"),
    *_variants("rerankers", "rerankers_api.py", "cohere", "jina", "voyage", "text-embeddings-inference"),
)
