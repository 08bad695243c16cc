"""BM25 scores of the candidates of a ranking set, which its files do not hold."""

from __future__ import annotations

import bm25s
import numpy as np
import Stemmer

from scorer.evaluation.ranking_eval import Scores
from scorer.evaluation.ranking_sets import RankingSet


def bm25_scores(ranking_set: RankingSet) -> dict[str, Scores]:
    """Scores by query id, in the order of its candidates.

    The variant of Lucene with k1 1.2 and b 0.75, English stop words of bm25s and the Snowball
    stemmer for English, over all documents of the set.
    """
    options = {"stopwords": "en", "stemmer": Stemmer.Stemmer("english"), "show_progress": False}
    index = bm25s.BM25(method="lucene", k1=1.2, b=0.75)
    index.index(bm25s.tokenize(list(ranking_set.documents.values()), **options), show_progress=False)
    place = {document: index for index, document in enumerate(ranking_set.documents)}
    found: dict[str, Scores] = {}
    for query in ranking_set.queries:
        words = bm25s.tokenize([query.text], return_ids=False, **options)[0]
        known = [word for word in words if word in index.vocab_dict]
        # bm25s refuses a query without a known word; such a query scores nothing
        scores = index.get_scores(known) if known else np.zeros(len(place))
        found[query.id] = np.array([scores[place[document]] for document in query.candidates], dtype=np.float64)
    return found
