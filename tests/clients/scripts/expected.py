"""What the runner tells a client script, and how the script says whether it got the order."""

import json
import sys
from pathlib import Path


def main(ranker_for):
    """Run the rankings named on the command line; exit non-zero unless every order is the one wanted.

    Args:
        ranker_for: ``(variant, base_url)`` to a function ``(query, documents, top_n)`` that gives
            indices of documents, best first.
    """
    variant, base_url, path = sys.argv[1:]
    rank = ranker_for(variant, base_url)
    for case in json.loads(Path(path).read_text(encoding="utf-8")):
        order = list(rank(case["query"], case["documents"], case["top_n"]))
        if order != case["order"]:
            sys.exit(f"{case['query']!r}: the order is {order}, wanted {case['order']}")
