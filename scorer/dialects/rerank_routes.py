"""The routes that rank documents for a query, and which dialects each of them speaks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from litestar.handlers import HTTPRouteHandler

from scorer.dialects.choice import DialectChoice
from scorer.dialects.cohere_rerank import cohere_dialect
from scorer.dialects.dialect import Dialect
from scorer.dialects.error_forms import native_error, tei_error
from scorer.dialects.infinity_rerank import infinity_dialect
from scorer.dialects.jina_rerank import jina_dialect
from scorer.dialects.nvidia_ranking import nvidia_dialect
from scorer.dialects.rerank import rerank_dialect
from scorer.dialects.routes import ScoringGate, scoring_route
from scorer.dialects.sglang_rerank import sglang_rerank_dialect
from scorer.dialects.tei_predict import tei_predict_dialect
from scorer.dialects.tei_rerank import tei_rerank_dialect
from scorer.dialects.vllm_rerank import OWN_KEYS, vllm_rerank_dialect
from scorer.dialects.voyage_rerank import voyage_dialect

RERANK_PATHS: Final = ("/v1/rerank", "/rerank", "/v1/reranking", "/reranking")
VLLM_PATHS: Final = ("/vllm/rerank", "/vllm/v1/rerank", "/vllm/v2/rerank")
TEI_PATHS: Final = ("/", "/invocations")
NVIDIA_PATHS: Final = (
    "/v1/ranking",
    "/v1/retrieval/{model:str}/reranking",
    "/v1/retrieval/{publisher:str}/{model:str}/reranking",
)


def rerank_routes(gate: ScoringGate) -> Sequence[HTTPRouteHandler]:
    """Every route that is shaped like a rerank."""
    by_texts = (frozenset({"query", "texts"}), tei_rerank_dialect())
    by_inputs = (frozenset({"inputs"}), tei_predict_dialect())
    common = DialectChoice([*_by_documents(), by_texts], native_error)
    sglang = sglang_rerank_dialect()
    return (
        scoring_route(gate, RERANK_PATHS[0], common, put=sglang),
        *(scoring_route(gate, path, common) for path in RERANK_PATHS[1:]),
        *(scoring_route(gate, path, DialectChoice([by_texts, by_inputs], tei_error)) for path in TEI_PATHS),
        scoring_route(gate, "/v2/rerank", cohere_dialect()),
        scoring_route(gate, "/sglang/v1/rerank", sglang, put=sglang),
        *(scoring_route(gate, path, vllm_rerank_dialect()) for path in VLLM_PATHS),
        scoring_route(gate, "/jina/v1/rerank", jina_dialect()),
        scoring_route(gate, "/voyage/v1/rerank", voyage_dialect()),
        scoring_route(gate, "/infinity/rerank", infinity_dialect()),
        *(scoring_route(gate, path, nvidia_dialect()) for path in NVIDIA_PATHS),
    )


def _by_documents() -> list[tuple[frozenset[str], Dialect[Any]]]:
    """Dialects that call documents so, told apart by what only one of them sends."""
    lenient, vllm = rerank_dialect(), vllm_rerank_dialect()
    return [
        *((frozenset({"query", "documents", key}), vllm) for key in OWN_KEYS),
        (frozenset({"query", "documents", "top_n", "top_k"}), lenient),
        (frozenset({"query", "documents", "top_k"}), voyage_dialect()),
        (frozenset({"query", "documents", "raw_scores"}), infinity_dialect()),
        (frozenset({"query", "documents", "instruct"}), sglang_rerank_dialect()),
        (frozenset({"query", "documents"}), lenient),
    ]
