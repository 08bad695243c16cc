"""The client of Infinity, made from its OpenAPI document: it refuses answers of another form."""

import expected
from infinity_client import Client
from infinity_client.api.default import rerank as api
from infinity_client.models import RerankInput


def ranker_for(_variant, base_url):
    client = Client(base_url=base_url)

    def rank(query, documents, top_n):
        reply = api.sync(client=client, body=RerankInput(query=query, documents=documents, top_n=top_n))
        return [result.index for result in reply.results]

    return rank


expected.main(ranker_for)
