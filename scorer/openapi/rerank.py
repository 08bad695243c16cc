"""The rerank-shaped routes of the OpenAPI document."""

from __future__ import annotations

from typing import Final

from scorer.dialects.cohere_rerank import CohereRerankRequest, CohereRerankResponse, cohere_error
from scorer.dialects.error_forms import detail_error, sglang_error, tei_error, vllm_error
from scorer.dialects.infinity_rerank import InfinityRerankRequest, InfinityRerankResponse, infinity_error
from scorer.dialects.jina_rerank import JinaRerankRequest, JinaRerankResponse
from scorer.dialects.nvidia_ranking import NvidiaRankingRequest, NvidiaRankingResponse
from scorer.dialects.rerank_routes import RERANK_PATHS, TEI_PATHS, VLLM_PATHS
from scorer.dialects.rerank_schema import RerankRequest, RerankResponse
from scorer.dialects.sglang_rerank import SglangRank, SglangRerankRequest
from scorer.dialects.tei_rerank import TeiRank, TeiRerankRequest
from scorer.dialects.vllm_rerank import OWN_KEYS, VllmRerankRequest, VllmRerankResponse
from scorer.dialects.voyage_rerank import VoyageRerankRequest, VoyageRerankResponse, voyage_error
from scorer.errors import UnknownModel
from scorer.openapi import rerank_examples as examples
from scorer.openapi.operations import ScoringOperation, Spoken
from scorer.openapi.scoring import PREDICT

_LENIENT: Final = Spoken(
    request=RerankRequest,
    reply=RerankResponse,
    requests=examples.RERANK_REQUESTS,
    answer=examples.RERANK_RESPONSE,
)
_VLLM: Final = Spoken(
    request=VllmRerankRequest,
    reply=VllmRerankResponse,
    requests=examples.VLLM_REQUESTS,
    answer=examples.VLLM_RESPONSE,
    error_form=vllm_error,
)
_JINA: Final = Spoken(
    request=JinaRerankRequest,
    reply=JinaRerankResponse,
    requests=examples.JINA_REQUESTS,
    answer=examples.JINA_RESPONSE,
    error_form=detail_error,
)
_VOYAGE: Final = Spoken(
    request=VoyageRerankRequest,
    reply=VoyageRerankResponse,
    requests=examples.VOYAGE_REQUESTS,
    answer=examples.VOYAGE_RESPONSE,
    error_form=voyage_error,
)
_INFINITY: Final = Spoken(
    request=InfinityRerankRequest,
    reply=InfinityRerankResponse,
    requests=examples.INFINITY_REQUESTS,
    answer=examples.INFINITY_RESPONSE,
    error_form=infinity_error,
)
_TEI: Final = Spoken(
    request=TeiRerankRequest,
    reply=list[TeiRank],
    requests=examples.TEI_REQUESTS,
    answer=examples.TEI_RESPONSE,
    error_form=tei_error,
)
_SGLANG: Final = Spoken(
    request=SglangRerankRequest,
    reply=list[SglangRank],
    requests=examples.SGLANG_REQUESTS,
    answer=examples.SGLANG_RESPONSE,
    error_form=sglang_error,
)
_COHERE: Final = Spoken(
    request=CohereRerankRequest,
    reply=CohereRerankResponse,
    requests=examples.COHERE_REQUESTS,
    answer=examples.COHERE_RESPONSE,
    error_form=cohere_error,
)
_NVIDIA: Final = Spoken(
    request=NvidiaRankingRequest,
    reply=NvidiaRankingResponse,
    requests=examples.NVIDIA_REQUESTS,
    answer=examples.NVIDIA_RESPONSE,
)
_ANY_MODEL: Final = frozenset[type[Exception]]({UnknownModel})
_BY_DOCUMENTS: Final = (
    "`documents` with `top_k` alone is Voyage's form, with `raw_scores` Infinity's, with `instruct` SGLang's, with "
    f"{' or '.join(f'`{key}`' for key in OWN_KEYS)} vLLM's; with anything else it is what clients of Jina, vLLM and "
    "version 1 of Cohere have in common."
)
_SGLANG_TEXT: Final = (
    "The base URL for clients of SGLang ends in `/sglang`. A document that cannot be scored refuses the request. "
    "Unknown fields are ignored."
)

RERANK_OPERATIONS: Final = (
    ScoringOperation(
        paths=RERANK_PATHS,
        operation_id="rerank",
        summary="Rank documents for a query, in the form of Jina, vLLM, Cohere v1, Voyage, Infinity, SGLang or "
        "text-embeddings-inference",
        description=(
            f"{_BY_DOCUMENTS} `texts` is the form of text-embeddings-inference, answered with an array; a text that "
            "cannot be scored refuses the request, as it does there. Unknown fields are ignored, optional fields may "
            "be null."
        ),
        spoken=(_LENIENT, _TEI, _VOYAGE, _INFINITY, _SGLANG, _VLLM),
    ),
    ScoringOperation(
        paths=TEI_PATHS,
        operation_id="teiRoot",
        summary="What text-embeddings-inference serves at its root: rerank or predict, told apart by the body",
        description="`texts` is answered as on /rerank, `inputs` as on /predict. Unknown fields are ignored.",
        spoken=(_TEI, PREDICT),
        never=_ANY_MODEL,
    ),
    ScoringOperation(
        paths=("/v2/rerank",),
        operation_id="rerankV2",
        summary="Rank documents for a query, in the form of Cohere v2",
        description="Unknown fields are refused. Documents without a score are named in `meta.warnings`.",
        spoken=(_COHERE,),
        never=_ANY_MODEL,
    ),
    ScoringOperation(
        paths=("/sglang/v1/rerank", "/v1/rerank"),
        method="put",
        operation_id="putRerankSglang",
        summary="Rank documents for a query, in the form of SGLang",
        description=_SGLANG_TEXT,
        spoken=(_SGLANG,),
        never=_ANY_MODEL,
    ),
    ScoringOperation(
        paths=("/sglang/v1/rerank",),
        operation_id="rerankSglang",
        summary="Rank documents for a query, in the form of SGLang",
        description=_SGLANG_TEXT,
        spoken=(_SGLANG,),
        never=_ANY_MODEL,
    ),
    ScoringOperation(
        paths=VLLM_PATHS,
        operation_id="rerankVllm",
        summary="Rank documents for a query, in the form of vLLM",
        description=(
            "The base URL for clients of vLLM may end in `/vllm`. Documents come back always, and one that cannot be "
            "scored refuses the request. Unknown fields are ignored."
        ),
        spoken=(_VLLM,),
    ),
    ScoringOperation(
        paths=("/jina/v1/rerank",),
        operation_id="rerankJina",
        summary="Rank documents for a query, in the form of Jina",
        description=(
            "The base URL for clients of Jina may end in `/jina/v1`. Documents come back unless `return_documents` is "
            "`false`. Unknown fields are refused."
        ),
        spoken=(_JINA,),
        never=_ANY_MODEL,
    ),
    ScoringOperation(
        paths=("/voyage/v1/rerank",),
        operation_id="rerankVoyage",
        summary="Rank documents for a query, in the form of Voyage",
        description="The base URL for clients of Voyage ends in `/voyage/v1`. Unknown fields are ignored.",
        spoken=(_VOYAGE,),
        never=_ANY_MODEL,
    ),
    ScoringOperation(
        paths=("/infinity/rerank",),
        operation_id="rerankInfinity",
        summary="Rank documents for a query, in the form of Infinity",
        description="For clients of Infinity that do not send `raw_scores`. Unknown fields are ignored.",
        spoken=(_INFINITY,),
        never=_ANY_MODEL,
    ),
    ScoringOperation(
        paths=("/v1/ranking", "/v1/retrieval/{model}/reranking", "/v1/retrieval/{publisher}/{model}/reranking"),
        operation_id="ranking",
        summary="Rank passages for a query, in the form of NVIDIA",
        description="Unknown fields are ignored.",
        spoken=(_NVIDIA,),
        never=_ANY_MODEL,
    ),
)
