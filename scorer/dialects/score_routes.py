"""The routes that score every pair, prompt or question, and which dialects each of them speaks."""

from __future__ import annotations

from collections.abc import Sequence

from litestar.handlers import HTTPRouteHandler

from scorer.dialects.choice import DialectChoice
from scorer.dialects.error_forms import vllm_error
from scorer.dialects.openai_decisions import openai_decisions_dialect
from scorer.dialects.routes import ScoringGate, scoring_route
from scorer.dialects.sglang_score import sglang_score_dialect
from scorer.dialects.systemone import systemone_dialect
from scorer.dialects.tei_predict import tei_predict_dialect
from scorer.dialects.vllm_generative_scoring import generative_scoring_dialect
from scorer.dialects.vllm_score import vllm_score_dialects


def score_routes(gate: ScoringGate) -> Sequence[HTTPRouteHandler]:
    """Every route that is shaped like a score, beside the native one."""
    pairs = vllm_score_dialects()
    labels = (frozenset({"items", "label_token_ids"}), sglang_score_dialect())
    return (
        scoring_route(gate, "/score", DialectChoice(pairs, vllm_error)),
        scoring_route(gate, "/v1/score", DialectChoice([*pairs, labels], vllm_error)),
        scoring_route(gate, "/generative_scoring", generative_scoring_dialect()),
        scoring_route(gate, "/predict", tei_predict_dialect()),
        scoring_route(gate, "/v1/decisions", openai_decisions_dialect()),
        scoring_route(gate, "/v1/systemone", systemone_dialect()),
    )
