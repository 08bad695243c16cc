from __future__ import annotations

import json

from benchmarks.http_cost import cpu_ms, request_body
from scorer.dialects.native import native_dialect


def test_body_is_a_valid_request_of_different_documents_of_the_stated_size() -> None:
    body = request_body(50, 1000)
    request = native_dialect().decode(body)
    texts = json.loads(body)["documents"]

    assert len(request.documents) == 50
    assert len(set(texts)) == 50
    assert {len(text.encode()) for text in texts} == {1000}


def test_cost_is_processor_time_of_the_work() -> None:
    calls = []

    assert cpu_ms(lambda: calls.append(1)) >= 0
    assert calls == [1]
