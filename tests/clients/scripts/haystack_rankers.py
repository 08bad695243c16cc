"""Rankers of Haystack for three services."""

import expected
from haystack import Document
from haystack.utils import Secret
from haystack_integrations.components.rankers.cohere import CohereRanker
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker
from haystack_integrations.components.rankers.jina import JinaRanker

KEY = Secret.from_token("none")


def component_for(variant, base_url, top_n):
    if variant == "cohere":
        return CohereRanker(model="any", api_key=KEY, api_base_url=base_url, top_k=top_n)
    if variant == "jina":
        return JinaRanker(model="any", api_key=KEY, base_url=f"{base_url}/v1/rerank", top_k=top_n)
    return HuggingFaceTEIRanker(url=base_url, top_k=top_n)


def ranker_for(variant, base_url):
    def rank(query, documents, top_n):
        given = [Document(id=str(index), content=text) for index, text in enumerate(documents)]
        ranked = component_for(variant, base_url, top_n).run(query=query, documents=given)
        return [int(document.id) for document in ranked["documents"]]

    return rank


expected.main(ranker_for)
