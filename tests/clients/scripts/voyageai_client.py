"""The client of Voyage."""

import expected
import voyageai


def ranker_for(_variant, base_url):
    client = voyageai.Client(api_key="none", base_url=f"{base_url}/voyage/v1")

    def rank(query, documents, top_n):
        reply = client.rerank(query, documents, model="any", top_k=top_n)
        return [result.index for result in reply.results]

    return rank


expected.main(ranker_for)
