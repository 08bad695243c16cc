"""What ``scorer eval`` found, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scorer.evaluation.ranking_eval import CUTOFF, Evaluation, RankingRow, RankingTable
from scorer.evaluation.ranking_run import Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalReport:
    """A measurement and everything needed to repeat it.

    Args:
        depth: Candidates taken per query, at most.
        tally: Pairs without a score were ranked last.
        seconds: Scoring alone: no loading, no BM25.
    """

    ranking_set: str
    model: str
    revision: str
    template: str
    dtype: str
    kernels: str
    num_documents: int
    depth: int
    max_document_tokens: int
    tally: Tally
    seconds: float
    evaluation: Evaluation

    @property
    def pairs_per_s(self) -> float:
        return self.tally.num_pairs / self.seconds


def format_report(report: EvalReport) -> str:
    """Tables for a terminal."""
    return "\n".join([*_head(report), "", *_quality(report.evaluation), "", *_work(report)])


def _head(report: EvalReport) -> Iterator[str]:
    num_queries, num_pairs = report.evaluation.every.num_queries, report.tally.num_pairs
    yield f"set       {report.ranking_set}: {num_queries} queries, {report.num_documents} documents, {num_pairs} pairs"
    yield f"model     {report.model} (revision {report.revision}), {report.dtype}, {report.kernels} kernels"
    cut = f"documents cut at {report.max_document_tokens} tokens (in {report.tally.num_cut} pairs)"
    yield f"template  {report.template}, {cut}"


def _quality(evaluation: Evaluation) -> Iterator[str]:
    yield from _table(f"all {evaluation.every.num_queries} queries", evaluation.every)
    if evaluation.held_out is not None:
        num_chosen = evaluation.every.num_queries - evaluation.held_out.num_queries
        title = f"{evaluation.held_out.num_queries} queries held out; weight chosen on the other {num_chosen}"
        yield ""
        yield from _table(title, evaluation.held_out)


def _table(title: str, table: RankingTable) -> Iterator[str]:
    measures = f"{f'nDCG@{CUTOFF}':>9}{f'MRR@{CUTOFF}':>9}"
    yield title
    yield f"  {'ranking':<20}{measures}   change in nDCG against BM25 [95 %]   better/worse"
    for row in table.rows:
        yield f"  {row.name:<20}{row.ndcg_at_10:>9.4f}{row.mrr_at_10:>9.4f}{_change(row)}".rstrip()
    yield f"  {'best possible':<20}{table.perfect_ndcg_at_10:>9.4f}{table.perfect_mrr_at_10:>9.4f}"


def _change(row: RankingRow) -> str:
    change = row.against_first_stage
    if change is None:
        return ""
    interval = f"{change.mean:+.4f} [{change.low:+.4f}, {change.high:+.4f}]"
    return f"   {interval:<34}   {change.num_better}/{change.num_worse}"


def _work(report: EvalReport) -> Iterator[str]:
    usage = report.tally.usage
    yield f"  {'prompt tokens':<20}{usage.prompt_tokens:>12,}"
    for name, count in (
        ("cached", usage.cached_tokens),
        ("shared", usage.shared_tokens),
        ("computed", usage.computed_tokens),
    ):
        yield f"  {name:<20}{count:>12,}   {count / usage.prompt_tokens:6.1%}"
    yield f"  {'time':<20}{report.seconds:>12,.1f} s, {report.pairs_per_s:.1f} pairs/s"
    if report.tally.num_unscored:
        yield f"  {report.tally.num_unscored} pairs have no score and are ranked last"
