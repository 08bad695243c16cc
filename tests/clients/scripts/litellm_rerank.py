"""LiteLLM, which knows rerank services as providers."""

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks the network for prices when it is imported

import expected
import litellm

PREFIXES = {"voyage": "/voyage", "infinity": "/infinity"}  # what it sends to these two could be meant for others


def ranker_for(variant, base_url):
    provider, _, prefix = variant.partition(" under ")
    base = base_url + (prefix or PREFIXES.get(provider, ""))
    name = "SmolLM2-135M-Instruct" if prefix == "/vllm" else "any"  # vLLM knows no other name than that of its model

    def rank(query, documents, top_n):
        reply = litellm.rerank(
            model=f"{provider}/{name}", query=query, documents=documents, top_n=top_n, api_base=base, api_key="none"
        )
        return [result["index"] for result in reply.results]

    return rank


expected.main(ranker_for)
