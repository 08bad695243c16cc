"""The API ranker of `rerankers`, which speaks to services by URL and always asks for all documents."""

import expected
from rerankers.models.api_rankers import APIRanker

PATHS = {
    "cohere": "/v1/rerank",
    "jina": "/v1/rerank",
    "voyage": "/v1/rerank",
    "text-embeddings-inference": "/rerank",
}


def ranker_for(variant, base_url):
    ranker = APIRanker("any", api_key="none", api_provider=variant, url=base_url + PATHS[variant])

    def rank(query, documents, top_n):
        ranked = ranker.rank(query=query, docs=documents, doc_ids=list(range(len(documents))))
        return [result.doc_id for result in ranked.results[:top_n]]

    return rank


expected.main(ranker_for)
