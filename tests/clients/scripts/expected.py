"""What the runner tells a client script, and how the script says which of its variants did well."""

import json
import sys
import traceback
from pathlib import Path


class Wrong(Exception):
    """A client got another answer than the native route gives."""


def main(ranker_for):
    """Check that every order is the one wanted, for every variant.

    Args:
        ranker_for: ``(variant, base_url)`` to a function ``(query, documents, top_n)`` that gives
            indices of documents, best first.
    """

    def check(variant, base_url, cases):
        rank = ranker_for(variant, base_url)
        for case in cases:
            order = list(rank(case["query"], case["documents"], case["top_n"]))
            if order != case["order"]:
                raise Wrong(f"{case['query']!r}: the order is {order}, wanted {case['order']}")

    run(check)


def run(check):
    """Call ``check(variant, base_url, cases)`` for every variant named on the command line; note what it raises."""
    base_url, rankings, outcomes, *variants = sys.argv[1:]
    cases = json.loads(Path(rankings).read_text(encoding="utf-8"))
    faults = {}
    for variant in variants:
        try:
            check(variant, base_url, cases)
            faults[variant] = None
        except Exception:  # noqa: BLE001  whatever a client raises is its fault
            faults[variant] = traceback.format_exc()
        # each at once: what comes later may end the process. Not printed, since libraries print too
        Path(outcomes).write_text(json.dumps(faults), encoding="utf-8")
