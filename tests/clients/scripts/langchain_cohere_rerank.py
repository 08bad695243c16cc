"""langchain-cohere: documents in, documents with an order out."""

import expected
from langchain_cohere import CohereRerank
from langchain_core.documents import Document


def ranker_for(_variant, base_url):
    def rank(query, documents, top_n):
        compressor = CohereRerank(model="any", cohere_api_key="none", base_url=base_url, top_n=top_n)
        given = [Document(page_content=text, metadata={"index": index}) for index, text in enumerate(documents)]
        return [document.metadata["index"] for document in compressor.compress_documents(given, query)]

    return rank


expected.main(ranker_for)
