"""The score-shaped routes of the OpenAPI document, beside the native one."""

from __future__ import annotations

from typing import Final

from scorer.dialects.error_forms import openai_error, sglang_error, tei_error, vllm_error
from scorer.dialects.openai_decisions import DecisionsRequest, DecisionsResponse
from scorer.dialects.score_routes import GENERATIVE_PATHS, SYSTEMONE_PATHS, VLLM_PATHS
from scorer.dialects.sglang_decisions import SglangDecisionsRequest, SglangDecisionsResponse
from scorer.dialects.sglang_score import SglangScoreRequest, SglangScoreResponse
from scorer.dialects.sglang_systemone import (
    SglangSystemOneRequest,
    SglangSystemOneResponse,
    sglang_systemone_error,
)
from scorer.dialects.systemone import SystemOneRequest, SystemOneResponse
from scorer.dialects.tei_predict import TeiPrediction, TeiPredictRequest
from scorer.dialects.vllm_generative_scoring import GenerativeScoringRequest
from scorer.dialects.vllm_score import SPELLINGS, VllmScoreResponse
from scorer.errors import UnknownModel
from scorer.openapi import scoring_examples as examples
from scorer.openapi.operations import ScoringOperation, Spoken

_VLLM: Final = tuple(
    Spoken(
        request=kind,
        reply=VllmScoreResponse,
        requests=examples.vllm_score_requests(queries, documents),
        answer=examples.VLLM_SCORE_RESPONSE,
        error_form=vllm_error,
    )
    for kind, queries, documents in SPELLINGS
)
_SGLANG: Final = Spoken(
    request=SglangScoreRequest,
    reply=SglangScoreResponse,
    requests=examples.SGLANG_SCORE_REQUESTS,
    answer=examples.SGLANG_SCORE_RESPONSE,
    error_form=sglang_error,
)
_GENERATIVE: Final = Spoken(
    request=GenerativeScoringRequest,
    reply=VllmScoreResponse,
    requests=examples.GENERATIVE_REQUESTS,
    answer=examples.GENERATIVE_RESPONSE,
    error_form=vllm_error,
)
PREDICT: Final = Spoken(
    request=TeiPredictRequest,
    reply=list[TeiPrediction | list[TeiPrediction]],
    requests=examples.TEI_PREDICT_REQUESTS,
    answer=examples.TEI_PREDICT_RESPONSE,
    error_form=tei_error,
)
_DECISIONS: Final = Spoken(
    request=DecisionsRequest,
    reply=DecisionsResponse,
    requests=examples.DECISIONS_REQUESTS,
    answer=examples.DECISIONS_RESPONSE,
    error_form=openai_error,
)
_SGLANG_DECISIONS: Final = Spoken(
    request=SglangDecisionsRequest,
    reply=SglangDecisionsResponse,
    requests=examples.SGLANG_DECISIONS_REQUESTS,
    answer=examples.SGLANG_DECISIONS_RESPONSE,
    error_form=sglang_error,
)
_SGLANG_SYSTEMONE: Final = Spoken(
    request=SglangSystemOneRequest,
    reply=SglangSystemOneResponse,
    requests=examples.SGLANG_SYSTEMONE_REQUESTS,
    answer=examples.SGLANG_SYSTEMONE_RESPONSE,
    error_form=sglang_systemone_error,
)
_SYSTEMONE: Final = Spoken(
    request=SystemOneRequest,
    reply=SystemOneResponse,
    requests=examples.SYSTEMONE_REQUESTS,
    answer=examples.SYSTEMONE_RESPONSE,
    error_form=vllm_error,
)
_QUESTIONS: Final = (
    "Every question is read as the probabilities of a few labels behind the text, which is computed once. Texts are "
    "data: no special token can come from them. Unknown fields are refused."
)
_BASE: Final = "The base URL for clients of SGLang ends in `/sglang`."
_PAIRS: Final = (
    "One query and one document, one and many, or equally many, in any of four spellings; a score for each pair in the "
    "order of the request, the same as `relevance_score` of the rerank routes. A pair that cannot be scored fails the "
    "request: this form has no place for it."
)
_RAW: Final = (
    "No template is applied: query and item make the prompt. Special tokens are read where a text spells them, so do "
    "not put texts of strangers there; what prompts have in common is computed once."
)

SCORING_OPERATIONS: Final[tuple[ScoringOperation, ...]] = (
    ScoringOperation(
        paths=VLLM_PATHS,
        operation_id="vllmScore",
        summary="Score pairs, in the form of vLLM",
        description=_PAIRS,
        spoken=_VLLM,
    ),
    ScoringOperation(
        paths=("/v1/score",),
        operation_id="score",
        summary="Score pairs in the form of vLLM, or label tokens in the form of SGLang",
        description=f"{_PAIRS} With `items` and `label_token_ids` it is SGLang's form. {_RAW}",
        spoken=(*_VLLM, _SGLANG),
    ),
    ScoringOperation(
        paths=GENERATIVE_PATHS,
        operation_id="generativeScoring",
        summary="Probability of the first of some label tokens, in the form of vLLM",
        description=f"{_RAW} A prompt that does not fit is cut at its end.",
        spoken=(_GENERATIVE,),
    ),
    ScoringOperation(
        paths=("/predict",),
        operation_id="teiPredict",
        summary="Probability of every label, in the form of text-embeddings-inference",
        description="Labels are those of the template for labels, the most probable first.",
        spoken=(PREDICT,),
        never=frozenset({UnknownModel}),
    ),
    ScoringOperation(
        paths=("/v1/decisions",),
        operation_id="decisions",
        summary="Answer questions about an input, in the form of OpenAI or SGLang",
        description=f"A first question that has a `question` makes it SGLang's form. {_QUESTIONS}",
        spoken=(_DECISIONS, _SGLANG_DECISIONS),
    ),
    ScoringOperation(
        paths=SYSTEMONE_PATHS,
        operation_id="systemOne",
        summary="Answer questions about a state, in the form of System One",
        description=_QUESTIONS,
        spoken=(_SYSTEMONE,),
    ),
    ScoringOperation(
        paths=("/vllm/v1/decisions",),
        operation_id="decisionsVllm",
        summary="Answer questions about an input, in the form of OpenAI that vLLM has, too",
        description=f"The base URL for clients of vLLM may end in `/vllm`. {_QUESTIONS}",
        spoken=(_DECISIONS,),
    ),
    ScoringOperation(
        paths=("/sglang/v1/score",),
        operation_id="scoreSglang",
        summary="Score label tokens, in the form of SGLang",
        description=f"{_BASE} {_RAW}",
        spoken=(_SGLANG,),
        never=frozenset({UnknownModel}),
    ),
    ScoringOperation(
        paths=("/sglang/v1/decisions",),
        operation_id="decisionsSglang",
        summary="Answer questions about an input, in the form of SGLang",
        description=f"{_BASE} {_QUESTIONS}",
        spoken=(_SGLANG_DECISIONS,),
        never=frozenset({UnknownModel}),
    ),
    ScoringOperation(
        paths=("/sglang/v1/systemone",),
        operation_id="systemOneSglang",
        summary="Answer questions about a state, in SGLang's form of System One",
        description=f"{_BASE} {_QUESTIONS}",
        spoken=(_SGLANG_SYSTEMONE,),
        never=frozenset({UnknownModel}),
    ),
)
