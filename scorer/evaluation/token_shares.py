"""Where prompt tokens came from, for the reports of commands."""

from __future__ import annotations

from engine import RowUsage
from scorer.scoring.batch import ScoredBatch


def usage_of(batch: ScoredBatch) -> RowUsage:
    """The tokens of all rows of a batch."""
    stats = batch.usage
    return RowUsage(
        prompt_tokens=stats.prompt_tokens,
        cached_tokens=stats.cached_tokens,
        shared_tokens=stats.shared_tokens,
        computed_tokens=stats.computed_tokens,
    )


def format_shares(usage: RowUsage) -> str:
    """Such as ``cached 61.0%, shared 20.5%, computed 18.5%``."""
    total = max(1, usage.prompt_tokens)
    counts = {"cached": usage.cached_tokens, "shared": usage.shared_tokens, "computed": usage.computed_tokens}
    return ", ".join(f"{name} {count / total:.1%}" for name, count in counts.items())
