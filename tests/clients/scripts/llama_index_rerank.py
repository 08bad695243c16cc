"""Postprocessors of LlamaIndex for four services."""

import expected
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.postprocessor.cohere_rerank import CohereRerank
from llama_index.postprocessor.jinaai_rerank import JinaRerank
from llama_index.postprocessor.nvidia_rerank import NVIDIARerank
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference


def postprocessor_for(variant, base_url, top_n):
    if variant == "cohere":
        return CohereRerank(api_key="none", model="any", base_url=base_url, top_n=top_n)
    if variant.startswith("jina"):
        prefix = variant.partition(" under ")[2]
        return JinaRerank(api_key="none", model="any", base_url=f"{base_url}{prefix}/v1", top_n=top_n)
    if variant == "nvidia":  # asks /v1/models for the name of the model
        return NVIDIARerank(base_url=f"{base_url}/v1", top_n=top_n, truncate="END")
    return TextEmbeddingInference(base_url=base_url, top_n=top_n)


def ranker_for(variant, base_url):
    def rank(query, documents, top_n):
        nodes = [NodeWithScore(node=TextNode(id_=str(index), text=text)) for index, text in enumerate(documents)]
        ranked = postprocessor_for(variant, base_url, top_n).postprocess_nodes(nodes, query_str=query)
        return [int(node.node.node_id) for node in ranked]

    return rank


expected.main(ranker_for)
