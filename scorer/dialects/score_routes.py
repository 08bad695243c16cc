"""The routes that score every pair, prompt or question, and which dialects each of them speaks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from litestar.handlers import HTTPRouteHandler

from scorer.dialects.choice import DialectChoice
from scorer.dialects.dialect import Dialect
from scorer.dialects.error_forms import openai_error, vllm_error
from scorer.dialects.openai_decisions import openai_decisions_dialect
from scorer.dialects.routes import ScoringGate, scoring_route
from scorer.dialects.sglang_decisions import sglang_decisions_dialect
from scorer.dialects.sglang_score import sglang_score_dialect
from scorer.dialects.sglang_systemone import sglang_systemone_dialect
from scorer.dialects.systemone import systemone_dialect
from scorer.dialects.tei_predict import tei_predict_dialect
from scorer.dialects.vllm_generative_scoring import generative_scoring_dialect
from scorer.dialects.vllm_score import vllm_score_dialects

VLLM_PATHS: Final = ("/score", "/vllm/score", "/vllm/v1/score")
GENERATIVE_PATHS: Final = ("/generative_scoring", "/vllm/generative_scoring")
SYSTEMONE_PATHS: Final = ("/v1/systemone", "/vllm/v1/systemone")


def score_routes(gate: ScoringGate) -> Sequence[HTTPRouteHandler]:
    """Every route that is shaped like a score, beside the native one."""
    pairs = vllm_score_dialects()
    labels = (frozenset({"items", "label_token_ids"}), sglang_score_dialect())
    decisions: list[tuple[frozenset[str], Dialect[Any]]] = [
        (frozenset({"input", "questions", "questions[0].question"}), sglang_decisions_dialect()),
        (frozenset({"input", "questions"}), openai_decisions_dialect()),
    ]
    return (
        *(scoring_route(gate, path, DialectChoice(pairs, vllm_error)) for path in VLLM_PATHS),
        scoring_route(gate, "/v1/score", DialectChoice([*pairs, labels], vllm_error)),
        *(scoring_route(gate, path, generative_scoring_dialect()) for path in GENERATIVE_PATHS),
        scoring_route(gate, "/predict", tei_predict_dialect()),
        scoring_route(gate, "/v1/decisions", DialectChoice(decisions, openai_error)),
        scoring_route(gate, "/vllm/v1/decisions", openai_decisions_dialect()),
        *(scoring_route(gate, path, systemone_dialect()) for path in SYSTEMONE_PATHS),
        scoring_route(gate, "/sglang/v1/score", sglang_score_dialect()),
        scoring_route(gate, "/sglang/v1/decisions", sglang_decisions_dialect()),
        scoring_route(gate, "/sglang/v1/systemone", sglang_systemone_dialect()),
    )
