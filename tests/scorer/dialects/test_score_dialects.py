"""The score-shaped dialects: what is put into the engine, and what golden files cannot say."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from litestar.testing import TestClient

from engine import EngineFault, LabelReadout, OutOfCapacity, TokenIds
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.service import SCORE, service
from tests.helpers.word_tokenizers import loaded

TOKENIZER = loaded("smollm").tokenizer
PAIRS = {"text_1": "what?", "text_2": ["a tree", "a plant"]}
RAW: dict[str, Any] = {"query": "<|im_start|>say ", "items": ["yes", "no"], "label_token_ids": [3, 4, 5]}
LONG = "alpha beta " * 400


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient[Any]]:
    with service() as client:
        yield client


def post(path: str, body: object, engine: FakeEngine | None = None, **settings: Any) -> httpx.Response:
    with service(engine, **settings) as client:
        return client.post(path, json=body)


def logit(tokens: list[int], label: int) -> float:
    """What the fake engine reads, worked out here again."""
    return zlib.crc32(b"".join(token.to_bytes(4, "little") for token in tokens), label) / 2**30


def shares(tokens: list[int], labels: list[int], *, softmax: bool) -> list[float]:
    weights = [math.exp(logit(tokens, label)) for label in labels]
    whole = sum(weights) if softmax else math.exp(5.0)  # the denominator that the fake engine gives
    return [weight / whole for weight in weights]


def ids(text: str) -> list[int]:
    return list(TOKENIZER.encode(text).ids)


@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("item_first", [False, True])
def test_sglang_joins_texts_before_it_reads_them(softmax: bool, item_first: bool) -> None:
    reply = post("/v1/score", RAW | {"apply_softmax": softmax, "item_first": item_first}).json()

    for row, item in zip(reply["scores"], RAW["items"], strict=True):
        prompt = ids(item + RAW["query"] if item_first else RAW["query"] + item)
        assert row == pytest.approx(shares(prompt, [3, 4, 5], softmax=softmax), rel=1e-5)


@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("item_first", [False, True])
def test_generative_scoring_reads_texts_apart_and_answers_the_first_label(softmax: bool, item_first: bool) -> None:
    reply = post("/generative_scoring", RAW | {"apply_softmax": softmax, "item_first": item_first}).json()

    for result, item in zip(reply["data"], RAW["items"], strict=True):
        prompt = ids(item) + ids(RAW["query"]) if item_first else ids(RAW["query"]) + ids(item)
        assert result["score"] == pytest.approx(shares(prompt, [3, 4, 5], softmax=softmax)[0], rel=1e-5)


def test_the_two_differ_in_what_they_normalise_over_by_default() -> None:
    with service() as client:
        sglang = client.post("/v1/score", json=RAW | {"query": [1], "items": [[2]]}).json()["scores"][0]
        vllm = client.post("/generative_scoring", json=RAW | {"query": [1], "items": [[2]]}).json()["data"][0]["score"]

    assert sglang == pytest.approx(shares([1, 2], [3, 4, 5], softmax=False), rel=1e-5)
    assert vllm == pytest.approx(shares([1, 2], [3, 4, 5], softmax=True)[0], rel=1e-5)


def test_a_temperature_divides_the_logits() -> None:
    body = {"query": [1], "items": [[2]], "label_token_ids": [3, 4], "apply_softmax": True}
    warm = post("/v1/score", body | {"temperature": 2}).json()["scores"][0]

    odds = (logit([1, 2], 3) - logit([1, 2], 4)) / 2
    assert warm[0] == pytest.approx(1 / (1 + math.exp(-odds)), rel=1e-5)


@pytest.mark.parametrize("softmax", [False, True])
def test_sglang_gives_log_probabilities_that_no_temperature_changes(softmax: bool) -> None:
    body = {"query": [1], "items": [[2], [3]], "label_token_ids": [4, 5], "apply_softmax": softmax}
    body |= {"temperature": 2} if softmax else {}
    plain, told = (post("/v1/score", body | {"return_token_logprobs": asked}).json() for asked in (False, True))

    assert plain["token_logprobs"] is None
    for got, wanted in zip(told["scores"], plain["scores"], strict=True):
        assert got == pytest.approx(wanted, rel=1e-6)
    for row, item in zip(told["token_logprobs"], (2, 3), strict=True):
        assert row == pytest.approx([logit([1, item], 4) - 5.0, logit([1, item], 5) - 5.0], rel=1e-6)


def test_token_ids_of_a_decision_give_its_answer_again() -> None:
    options = [{"name": "plant"}, {"name": "animal"}]
    question = {"id": "q", "type": "choice", "question": "What?", "options": options}
    level = {"id": "r", "type": "score", "question": "How?", "levels": ["low", "high", "top"]}
    body = {"input": "a tree", "questions": [level, question], "return_prompt_token_ids": True}
    with service() as client:
        for asked in client.post("/sglang/v1/decisions", json=body).json()["answers"].values():
            ids, labels = asked["prompt_token_ids"], asked["label_token_ids"]
            raw = {"query": [], "items": [ids], "label_token_ids": labels, "apply_softmax": True}
            (row,) = client.post("/sglang/v1/score", json=raw).json()["scores"]
            assert row == pytest.approx(list(asked["probabilities"].values()))


def test_a_prompt_that_spells_the_template_scores_as_the_template_does() -> None:
    documents, query = ["a tree is a plant", "nobody is there"], "what is a tree?"
    instruction = "Judge whether the document answers the query."
    labels = [ids("Yes")[0], ids("No")[0]]
    raw = {
        "query": f"<|im_start|>user\n{instruction}\n\nQuery: {query}\n\nDocument: ",
        "items": [f"{text}\n\nReply with Yes or No only.<|im_end|>\n<|im_start|>assistant\n" for text in documents],
        "label_token_ids": labels,
        "apply_softmax": True,
    }
    native = {"queries": [query], "documents": documents, "template": "yes-no@1", "order": "query_first"}
    engine = FakeEngine()
    with service(engine) as client:
        wanted = client.post(SCORE, json=native).json()["results"]
        got = client.post("/v1/score", json=raw).json()["scores"]

    first, second = engine.tasks
    assert len(ids("Yes")) == len(ids("No")) == 1
    assert [row.tokens.tolist() for row in first.rows] == [row.tokens.tolist() for row in second.rows]
    assert [row[0] for row in got] == pytest.approx([each["score"] for each in wanted])


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        ({"query": [1, 2, 3], "items": [[4], [5, 6]]}, [3, 3]),
        ({"query": [1, 2, 3], "items": [[4], [5, 6]], "item_first": True}, [1, 2]),
    ],
)
def test_what_comes_first_is_worth_keeping(body: dict[str, Any], kept: list[int]) -> None:
    engine = FakeEngine()
    for path in ("/v1/score", "/generative_scoring"):
        post(path, body | {"label_token_ids": [7]}, engine)

    for task in engine.tasks:
        assert [row.keep_tokens for row in task.rows] == kept


def test_every_item_may_have_labels_of_its_own() -> None:
    engine = FakeEngine()
    post("/v1/score", {"query": [1], "items": [[2], [3]], "label_token_ids": [[7, 8], [9]]}, engine)

    readouts = [row.readout for task in engine.tasks for row in task.rows]
    assert readouts == [
        LabelReadout(label_ids=(7, 8), log_sum_exp=True),
        LabelReadout(label_ids=(9,), log_sum_exp=True),
    ]


def test_a_prompt_that_is_too_long_is_cut_by_vllm_and_refused_by_sglang() -> None:
    body = {"query": list(range(200)), "items": [[1] * 200, [2]], "label_token_ids": [7]}
    engine = FakeEngine(max_row_tokens=300)
    with service(engine) as client:
        cut, refused = client.post("/generative_scoring", json=body), client.post("/v1/score", json=body)

    (task,) = engine.tasks
    assert [row.tokens.tolist() for row in task.rows] == [[*range(200), *[1] * 100], [*range(200), 2]]
    assert cut.json()["usage"]["prompt_tokens"] == 501
    assert (refused.status_code, refused.json()["param"]) == (400, "items[0]")
    assert "400 tokens, the limit is 300" in refused.json()["message"]


@pytest.mark.parametrize("labels", [list(range(1025)), [[7], list(range(1025))]])
def test_sglang_takes_so_many_labels_and_no_more(labels: list[Any]) -> None:
    body = {"query": [1], "items": [[2], [3]]}
    with service(FakeEngine(vocab_size=2000)) as client:
        refused = client.post("/v1/score", json=body | {"label_token_ids": labels})
        served = client.post("/v1/score", json=body | {"label_token_ids": list(range(1024))})

    assert (refused.status_code, refused.json()["object"]) == (400, "error")
    assert refused.json()["param"].startswith("label_token_ids")
    assert [len(row) for row in served.json()["scores"]] == [1024, 1024]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/score", {"text_1": "what?", "text_2": ["a tree", LONG]}),
        ("/predict", {"inputs": [["what?", "a tree"], ["what?", LONG]], "truncate": False}),
        ("/rerank", {"query": "what?", "texts": ["a tree", LONG], "truncate": False}),
    ],
)
def test_nothing_is_run_for_a_request_that_is_refused_for_one_of_its_pairs(path: str, body: dict[str, Any]) -> None:
    engine = FakeEngine(max_row_tokens=300)
    reply = post(path, body, engine)

    assert reply.status_code in {400, 422}
    assert engine.tasks == []


def test_a_template_with_one_label_predicts_that_label() -> None:
    with service(FakeEngine(), template="bge-reranker-v2-gemma@1") as client:
        (prediction,) = client.post("/predict", json={"inputs": ["what?", "a tree"]}).json()
        relevance = client.post("/score", json={"text_1": "what?", "text_2": "a tree"}).json()["data"][0]["score"]

    assert prediction == {"score": relevance, "label": "Yes"}


def test_vllm_cuts_documents_only_if_it_is_told_to() -> None:
    engine = FakeEngine(max_row_tokens=300)
    body = {"text_1": "what?", "text_2": ["a tree", LONG]}
    options: list[dict[str, Any]] = [
        {},
        {"truncate_prompt_tokens": -1},
        {"truncate_prompt_tokens": 60},
        {"truncate_prompt_tokens": -1, "truncation_side": "left"},
    ]
    with service(engine) as client:
        refused, cut, shorter, left = (client.post("/score", json=body | option) for option in options)

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "text_2[1]")
    assert (cut.status_code, shorter.status_code) == (200, 200)
    assert left.status_code == 200
    longest, longest_asked, _ = (max(len(row.tokens) for row in task.rows) for task in engine.tasks)
    assert 250 < longest <= 300
    assert 50 < longest_asked <= 60


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/score", {"text_1": "what?", "text_2": "@", "truncate_prompt_tokens": -1, "truncation_side": "left"}),
        ("/predict", {"inputs": ["what?", "@"], "truncation_direction": "Left"}),
        ("/rerank", {"query": "what?", "texts": ["@"], "truncation_direction": "left"}),
        (SCORE, {"queries": ["what?"], "documents": ["@"], "truncation_side": "left"}),
        (SCORE, {"queries": ["what?"], "documents": ["@"], "truncation_side": "left", "template": "listwise"}),
    ],
)
def test_a_document_loses_its_beginning_where_that_is_asked_for(path: str, body: dict[str, Any]) -> None:
    shown = []
    for told in (body, {name: value for name, value in body.items() if not name.startswith("truncation_")}):
        engine = FakeEngine(max_row_tokens=300)
        text = json.dumps(told).replace("@", f"the beginning {LONG} the end")
        with service(engine) as client:
            reply = client.post(path, content=text, headers={"content-type": "application/json"})
        assert reply.status_code == 200
        assert int(reply.headers["x-truncated-tokens"]) > 0
        shown.append(TOKENIZER.decode(engine.tasks[0].rows[0].tokens.tolist()))

    assert [("the beginning" in text, "the end" in text) for text in shown] == [(False, True), (True, False)]


NATIVE = {"queries": ["what?"], "documents": ["a tree"]}


@pytest.mark.parametrize(
    ("path", "body", "salted"),
    [
        ("/score", PAIRS, lambda salt: {"cache_salt": salt}),
        ("/generative_scoring", RAW, lambda salt: {"cache_salt": salt}),
        (SCORE, NATIVE, lambda salt: {"cache": {"key": salt}}),
    ],
)
def test_a_salt_parts_the_cache(path: str, body: dict[str, Any], salted: Callable[[str | None], Any]) -> None:
    engine = FakeEngine()
    with service(engine) as client:
        cached = [
            int(client.post(path, json=body | salted(salt)).headers["x-cached-tokens"])
            for salt in ("one", "one", "two", None, "one")
        ]

    assert [tokens > 0 for tokens in cached] == [False, True, False, False, True]
    assert {task.namespace.partition("/")[0] for task in engine.tasks} == {"rev1"}
    assert not any("one" in task.namespace for task in engine.tasks)


def test_token_counts_are_in_the_usage_and_in_headers() -> None:
    with service() as client:
        replies = [
            client.post("/v1/score", json={"query": [1, 2, 3], "items": [[4]], "label_token_ids": [5]}) for _ in "ab"
        ]

    for reply, cached in zip(replies, (0, 3), strict=True):
        assert reply.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": cached}
        assert (reply.headers["x-cached-tokens"], reply.headers["x-computed-tokens"]) == (str(cached), str(4 - cached))


FORMS: list[tuple[str, dict[str, Any], set[str]]] = [
    ("/score", PAIRS, {"error"}),
    ("/v1/score", RAW, {"object", "message", "type", "param", "code"}),
    ("/generative_scoring", RAW, {"error"}),
    ("/predict", {"inputs": ["q", "d"]}, {"error", "error_type"}),
]


@pytest.mark.parametrize(("path", "body", "keys"), FORMS)
def test_whatever_goes_wrong_is_said_in_the_form_of_the_dialect(
    path: str, body: dict[str, Any], keys: set[str]
) -> None:
    full, broken, late, poisoned = FakeEngine(), FakeEngine(), FakeEngine(), FakeEngine()
    full.refuse_with = OutOfCapacity("no room", retry_after_s=3.0)
    broken.fail_with = EngineFault("step failed")
    late.late = {0, 1}
    poisoned.poison = {0: math.nan}
    replies = [post(path, body, engine) for engine in (full, broken, late, poisoned)]
    backend = 424 if path == "/predict" else None

    assert [reply.status_code for reply in replies] == [429, 503, backend or 504, backend or 500]
    assert replies[0].headers["retry-after"] == "3"
    assert all(reply.json().keys() == keys for reply in replies)


@pytest.mark.parametrize("path", [path for path, _, _ in FORMS])
@pytest.mark.parametrize(
    "value", ["null", "true", "1e400", "9" * 30, '"\\ud800"', "[[]]", "{}", '{"a":' * 5 + "1" + "}" * 5]
)
def test_wrong_values_are_never_a_fault_of_ours(client: TestClient[Any], path: str, value: str) -> None:
    names = {name for _, body, _ in FORMS for name in body} | {"model", "truncate", "cache_salt", "priority"}
    fields = {path: dict(body) for path, body, _ in FORMS}[path]
    for name in names:
        given = {key: json.dumps(each) for key, each in fields.items()} | {name: value}
        text = "{" + ",".join(f'"{key}":{each}' for key, each in given.items()) + "}"
        reply = client.post(path, content=text, headers={"content-type": "application/json"})

        assert reply.status_code in {200, 400, 404, 422}, (name, reply.text)


def test_tokens_are_32_bit_integers_for_the_engine() -> None:
    engine = FakeEngine()
    post("/v1/score", {"query": [1], "items": [[2]], "label_token_ids": [5]}, engine)

    tokens: TokenIds = engine.tasks[0].rows[0].tokens
    assert tokens.dtype == "int32"
    assert not tokens.flags.writeable
