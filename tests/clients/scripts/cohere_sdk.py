"""The SDK of Cohere, both of its clients."""

import cohere
import expected


def ranker_for(variant, base_url):
    kinds = {"v1": cohere.Client, "v2": cohere.ClientV2}
    client = kinds[variant](api_key="none", base_url=base_url)

    def rank(query, documents, top_n):
        reply = client.rerank(model="any", query=query, documents=documents, top_n=top_n)
        return [result.index for result in reply.results]

    return rank


expected.main(ranker_for)
