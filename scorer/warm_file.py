"""Fills the cache before the service is ready: requests of a file, scored like any other."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from scorer.dialects.schema import ScoreRequest
from scorer.errors import Refusal
from scorer.model_host import LoadedModel
from scorer.offline.pair_lines import InputError, PairLine, read_lines, scan_lines
from scorer.offline.scoring import score_now

_LOG = logging.getLogger(__name__)


def warm_cache(path: Path, model: LoadedModel) -> None:
    """Score every line, in order, so that what its prompts begin with is found by those that come later.

    Lines are those of ``scorer score``: pairs, or batches in the native form. What is kept may be
    evicted like anything else; put last what matters most.

    Raises:
        InputError: the file cannot be read, or a line of it cannot be served.
        EngineError: the engine could not score a line.
    """
    began_s = time.monotonic()
    num_lines, num_pairs, num_unscored = len(scan_lines(path)), 0, 0
    for number, line in read_lines(path):
        request = ScoreRequest(queries=[line.query], documents=[line.document]) if isinstance(line, PairLine) else line
        try:
            batch = score_now(request, model, request_id=f"warm-{number}")
        except Refusal as error:
            raise InputError(f"{path}:{number}: {error}") from error
        num_pairs += len(batch.items)
        num_unscored += sum(item.score is None for item in batch.items)
    if num_unscored:
        _LOG.warning("%d of the %d pairs of %s have no score", num_unscored, num_pairs, path)
    fields = {
        "lines": num_lines,
        "pairs": num_pairs,
        "cached_tokens": model.engine.health().snapshot.cached_tokens,
        "duration_s": round(time.monotonic() - began_s, 3),
    }
    _LOG.info("cache warmed", extra={"fields": fields})
