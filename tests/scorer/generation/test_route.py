"""``POST /v1/generate`` over HTTP: a tiny random model behind it, or an engine that says what a test wants."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from litestar.testing import TestClient

from engine import DeadlineExceeded, EngineFault, GenerateResult, OutOfCapacity
from engine.runner import EngineThread
from scorer.app import Application, load_prompts
from scorer.generation.branch_texts import BranchTexts
from scorer.generation.schema import GenerateText
from scorer.metrics import Metrics
from scorer.model_host import LoadedModel
from scorer.scoring.raw_texts import RawTexts
from scorer.settings import Settings
from scorer.tokens.text_tokens import TextMemo
from tests.helpers.asgi import Exchange
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.paper_engine import check_cache
from tests.helpers.service import SCORE, build_quickly, client_of, fake_application, sample, service, until
from tests.helpers.tiny import Gate, Log, tiny_checkpoint, tiny_config, tiny_engine
from tests.helpers.word_tokenizers import loaded

GENERATE = "/v1/generate"
TOKENIZER = loaded("smollm")
TEXTS = RawTexts(TOKENIZER, TextMemo(0))
PROMPT = "what is a tree and who is there?"
SAMPLED = {"prompt": PROMPT, "max_tokens": 12, "n": 4, "temperature": 30.0, "seed": 7}


def ids(text: str) -> list[int]:
    return [int(token) for token in TEXTS.encode([text])[0]]


class TinyModel:
    """A service over a random model, whose engine a test may look into."""

    def __init__(self, observer: Log | None = None, *, num_blocks: int = 256, **settings: Any) -> None:
        self.engine: EngineThread | None = None
        self._observer = observer
        self._num_blocks = num_blocks
        self.application: Application = build_quickly(Settings(**settings), Metrics(), self._load, test=lambda _: None)

    def _load(self) -> LoadedModel:
        memo = TextMemo(100_000)
        checkpoint = tiny_checkpoint(tiny_config(vocab_size=TOKENIZER.vocab_size))
        self.engine = tiny_engine(checkpoint, self._observer, num_blocks=self._num_blocks)
        prompts = load_prompts(TOKENIZER, memo, template=None, chat_format=None)
        return LoadedModel(engine=self.engine, prompts=prompts, texts=RawTexts(TOKENIZER, memo), memo=memo, name="tiny")

    @contextmanager
    def client(self) -> Iterator[TestClient[Any]]:
        with client_of(self.application) as client:
            yield client

    def num_held(self) -> int:
        """Blocks that are not free."""
        assert self.engine is not None
        snapshot = self.engine.health().snapshot
        assert snapshot.free_blocks + snapshot.cached_blocks + snapshot.pinned_blocks == snapshot.num_blocks
        return snapshot.num_blocks - snapshot.free_blocks

    def check_at_rest(self, *, cached_tokens: int) -> None:
        """Nothing is under way, and nothing is cached but so many tokens."""
        assert self.engine is not None
        engine = self.engine
        until(lambda: engine.health().snapshot.queued_tasks == 0)
        until(lambda: engine.health().snapshot.cached_tokens == cached_tokens)
        check_cache(engine._cache)
        assert self.application.admission.num_requests == 0
        assert self.application.admission.buffered_bytes == 0


def events_of(text: str) -> list[tuple[str, Any]]:
    """The events of a stream, each of one name and one line of data."""
    events = []
    for block in text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        events.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    assert text.endswith("\n\n") or not text
    return events


def texts(answer: Any) -> list[str]:
    return [choice["text"] for choice in answer["choices"]]


def streamed(client: TestClient[Any], body: dict[str, Any]) -> list[tuple[str, Any]]:
    reply = client.post(GENERATE, json=body | {"stream": True})
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    return events_of(reply.text)


def texts_of(events: list[tuple[str, Any]], count: int) -> list[str]:
    """The texts of all choices, put together; each has ended once, with its last piece."""
    pieces = [data for name, data in events if name == "text"]
    for index in range(count):
        ends = [piece["finish_reason"] for piece in pieces if piece["index"] == index]
        assert ends[-1] is not None
        assert set(ends[:-1]) <= {None}
    return ["".join(piece["text"] for piece in pieces if piece["index"] == index) for index in range(count)]


class TestAnswers:
    def test_choices_of_one_prompt_and_what_they_cost(self) -> None:
        model = TinyModel()
        with model.client() as client:
            reply = client.post(GENERATE, json=SAMPLED | {"request_id": "g-1"})
            model.check_at_rest(cached_tokens=len(ids(PROMPT)))

        answer = reply.json()
        assert reply.status_code == 200
        assert (answer["id"], answer["object"], answer["model"], answer["seed"]) == ("g-1", "generation", "tiny", 7)
        assert answer["template"] is None
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
        assert len({choice["text"] for choice in answer["choices"]}) == 4
        usage = answer["usage"]
        said = [choice["completion_tokens"] for choice in answer["choices"]]
        assert usage["prompt_tokens"] == len(ids(PROMPT))
        assert usage["completion_tokens"] == sum(said)
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert usage["prompt_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": len(ids(PROMPT))}
        assert usage["prompt_tokens"] < usage["computed_tokens"] <= usage["total_tokens"]
        assert reply.headers["x-computed-tokens"] == str(usage["computed_tokens"])

    def test_a_seed_reproduces_and_is_told_where_none_was_given(self) -> None:
        with TinyModel().client() as client:
            first, again = (client.post(GENERATE, json=SAMPLED).json() for _ in range(2))
            free = client.post(GENERATE, json=SAMPLED | {"seed": None}).json()
            repeated = client.post(GENERATE, json=SAMPLED | {"seed": free["seed"]}).json()

        assert texts(again) == texts(first)
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == len(ids(PROMPT)) - 1
        assert texts(free) != texts(first)
        assert texts(repeated) == texts(free)

    def test_a_stream_says_what_the_answer_says(self) -> None:
        with TinyModel().client() as client:
            answer = client.post(GENERATE, json=SAMPLED).json()
            events = streamed(client, SAMPLED)

        assert texts_of(events, 4) == texts(answer)
        assert [name for name, _ in events].count("usage") == 1
        name, end = events[-1]
        assert name == "usage"
        assert end["object"] == "generation.usage"
        assert end["usage"]["completion_tokens"] == answer["usage"]["completion_tokens"]
        assert end["usage"]["prompt_tokens_details"]["cached_tokens"] == len(ids(PROMPT)) - 1

    def test_a_template_makes_the_prompt(self) -> None:
        engine = FakeEngine()
        with service(engine) as client:
            reply = client.post(GENERATE, json={"query": "what is a tree?", "document": "a tree is a plant"})

        assert reply.json()["template"].startswith("yes-no@")
        text = TOKENIZER.tokenizer.decode(engine.generations[0].tokens.tolist(), skip_special_tokens=False)
        assert "a tree is a plant" in text
        assert text.endswith("<|im_start|>assistant\n")
        assert TOKENIZER.special_tokens["<|im_end|>"] in engine.generations[0].end_ids

    def test_the_query_of_a_likelihood_template_is_written_on_what_ranking_has_computed(self) -> None:
        document = "a tree is a plant that stands in a garden"
        with TinyModel().client() as client:
            ranked = client.post(SCORE, json={"queries": ["what is it?"], "documents": [document]}).json()
            reply = client.post(GENERATE, json={"template": "query-likelihood", "document": document}).json()

        assert (reply["template"], ranked["template"]) == ("query-likelihood@1", "query-likelihood@1")
        target_tokens = ranked["results"][0]["target_tokens"]
        context_tokens = ranked["usage"]["prompt_tokens"] - (target_tokens - 1)
        assert reply["usage"]["prompt_tokens"] == context_tokens
        assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == context_tokens - 1

    def test_a_salt_parts_the_cache_as_it_does_for_scores(self) -> None:
        engine = FakeEngine()
        with service(engine) as client:
            for salt in ("one", "two", None):
                client.post(GENERATE, json={"prompt": "a", "cache_salt": salt})
            client.post("/score", json={"text_1": "q", "text_2": "d", "cache_salt": "one"})

        namespaces = [task.namespace for task in engine.generations]
        assert len(set(namespaces)) == 3
        assert namespaces[0] == engine.tasks[0].namespace
        assert namespaces[2] == "rev1"
        with TinyModel().client() as client:
            cached = [
                client.post(GENERATE, json={"prompt": PROMPT, "cache_salt": salt}).headers["x-cached-tokens"]
                for salt in ("one", "one", "two")
            ]
        assert cached == ["0", str(len(ids(PROMPT)) - 1), "0"]

    def test_special_tokens_come_from_a_prompt_and_not_from_the_texts_of_a_template(self) -> None:
        engine = FakeEngine()
        mark = TOKENIZER.special_tokens["<|im_start|>"]
        with service(engine) as client:
            client.post(GENERATE, json={"prompt": "<|im_start|>a"})
            client.post(GENERATE, json={"query": "<|im_start|>a", "document": "b"})
            client.post(GENERATE, json={"query": "a", "document": "b"})

        own, filled, plain = (task.tokens.tolist().count(mark) for task in engine.generations)
        assert own == 1
        assert filled == plain

    def test_metrics_count_it_as_a_request_of_its_own_route(self) -> None:
        with TinyModel().client() as client:
            client.post(GENERATE, json=SAMPLED)
            streamed(client, SAMPLED)
            count = sample(client, "scorer_request_duration_seconds_count", route=GENERATE, outcome="ok")
            assert count == 2
            assert sample(client, "scorer_ttft_seconds_count") == 2


class TestText:
    """The engine says what the test wants, so that text is the only thing that is judged."""

    def test_a_stop_text_is_cut_exactly_and_never_shows_in_a_stream(self) -> None:
        engine = FakeEngine()
        text = "one tree\nand another tree\nend"
        engine.says = ids(text)
        body = {"prompt": "a", "max_tokens": 64, "stop": ["her tree\ne", "nobody"]}
        with service(engine) as client:
            answer = client.post(GENERATE, json=body).json()
            events = streamed(client, body)

        (choice,) = answer["choices"]
        assert choice["text"] == "one tree\nand anot" == texts_of(events, 1)[0]
        assert choice["finish_reason"] == "stop"
        assert choice["completion_tokens"] <= len(engine.says)
        given_out = ""
        for name, data in events:
            if name == "text":
                given_out += data["text"]
                assert "one tree\nand anot".startswith(given_out)

    def test_characters_are_never_split(self) -> None:
        engine = FakeEngine()
        text = "naïve 日本語 🎉👩‍👧 Ελλάδα"
        engine.says = ids(text)
        with service(engine) as client:
            events = streamed(client, {"prompt": "a", "max_tokens": 64})

        assert len(ids(text)) <= 64
        assert texts_of(events, 1) == [text]
        assert not any("\ufffd" in data["text"] for name, data in events if name == "text")

    def test_max_tokens_ends_a_choice(self) -> None:
        engine = FakeEngine()
        engine.says = ids("a tree is a tree is a tree")
        with service(engine) as client:
            (choice,) = client.post(GENERATE, json={"prompt": "a", "max_tokens": 3}).json()["choices"]

        assert (choice["finish_reason"], choice["completion_tokens"]) == ("length", 3)
        assert choice["text"] == TEXTS.decode(engine.says[:3])


class TestErrors:
    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            ({"prompt": None}, "prompt"),
            ({"prompt": ""}, "prompt"),
            ({"query": "q"}, "query"),
            ({"order": "query_first"}, "order"),
            ({"max_tokens": 0}, "max_tokens"),
            ({"max_tokens": 65}, "max_tokens"),
            ({"n": 0}, "n"),
            ({"n": 17}, "n"),
            ({"temperature": -0.1}, "temperature"),
            ({"temperature": 101}, "temperature"),
            ({"top_p": 0}, "top_p"),
            ({"top_p": 1.1}, "top_p"),
            ({"top_k": -1}, "top_k"),
            ({"seed": -1}, "seed"),
            ({"seed": 2**53}, "seed"),
            ({"stop": [""]}, "stop[0]"),
            ({"stop": ["a"] * 9}, "stop"),
            ({"stop": "a"}, "stop"),
            ({"stream": 1}, "stream"),
            ({"max_token": 5}, "max_token"),
            ({"deadline_ms": 10**9}, "deadline_ms"),
            ({"prompt": "tree " * 3000}, "prompt"),
            ({"prompt": None, "query": "q", "template": "nobody"}, "template"),
            ({"prompt": None, "query": "q", "template": "query-likelihood"}, "query"),
            ({"prompt": None, "document": "d", "template": "yes-no"}, "query"),
            ({"prompt": None, "document": "d"}, "prompt"),
            ({"cache_salt": ""}, "cache_salt"),
            ({"cache_salt": "s" * 129}, "cache_salt"),
            ({"prompt": None, "query": "q", "template": "multiple-choice"}, "template"),
            ({"prompt": None, "query": "q", "document": "tree " * 3000}, "document"),
        ],
    )
    @pytest.mark.parametrize("stream", [False, True])
    def test_what_cannot_be_served_names_its_field(self, changes: dict[str, Any], field: str, stream: bool) -> None:
        with service() as client:
            body = {"prompt": "a", "stream": stream} | changes
            reply = client.post(GENERATE, json={name: value for name, value in body.items() if value is not None})

        assert reply.status_code == 422
        assert reply.json()["error"]["field"] == field

    def test_another_model_is_unknown(self) -> None:
        with service() as client:
            assert client.post(GENERATE, json={"prompt": "a", "model": "other"}).status_code == 404

    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize(
        ("error", "status", "code"),
        [
            (OutOfCapacity("full"), 429, "out_of_capacity"),
            (DeadlineExceeded("late"), 504, "deadline_exceeded"),
            (EngineFault("broken"), 503, "engine_fault"),
        ],
    )
    def test_what_fails_before_the_first_token_is_an_error_like_any_other(
        self, error: Exception, status: int, code: str, stream: bool
    ) -> None:
        engine = FakeEngine()
        application = fake_application(engine)
        if isinstance(error, OutOfCapacity):
            engine.refuse_with = error
        else:
            engine.fail_with = error
        with client_of(application) as client:
            reply = client.post(GENERATE, json={"prompt": "a", "stream": stream})

        assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)
        assert application.admission.num_requests == 0

    def test_over_the_limit_of_requests_it_is_refused(self) -> None:
        engine = FakeEngine(held=True)
        application = fake_application(engine, max_concurrent_requests=1)
        with client_of(application) as client, ThreadPoolExecutor(1) as pool:
            first = pool.submit(client.post, GENERATE, json={"prompt": "a", "stream": True})
            until(lambda: engine.num_pending == 1)
            refused = client.post(GENERATE, json={"prompt": "a"})
            engine.release()
            assert first.result().status_code == 200

        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
        assert application.admission.num_requests == 0

    def test_what_fails_after_the_first_piece_is_the_last_event(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(self: BranchTexts, result: GenerateResult) -> list[GenerateText]:
            raise EngineFault("broken")

        monkeypatch.setattr(BranchTexts, "close", broken)
        application = fake_application(FakeEngine())
        with client_of(application) as client:
            events = streamed(client, {"prompt": "a", "request_id": "g-2"})
            assert sample(client, "scorer_request_duration_seconds_count", route=GENERATE, outcome="fault") == 1

        name, data = events[-1]
        assert (name, data["error"]["code"], data["error"]["request_id"]) == ("error", "engine_fault", "g-2")
        assert application.admission.num_requests == 0


class TestEnds:
    def test_a_deadline_answers_what_is_there_by_then(self) -> None:
        gate = Gate()
        model = TinyModel(gate)
        with model.client() as client:
            gate.pass_one()
            gate.pass_one()  # two tokens; then the engine stands still until the deadline has passed

            threading.Timer(0.5, gate.open).start()
            reply = client.post(GENERATE, json=SAMPLED | {"deadline_ms": 300, "max_tokens": 64})
            model.check_at_rest(cached_tokens=len(ids(PROMPT)))

        choices = reply.json()["choices"]
        assert reply.status_code == 200
        assert {choice["finish_reason"] for choice in choices} == {"deadline"}
        assert {choice["completion_tokens"] for choice in choices} == {3}

    @pytest.mark.parametrize("stream", [False, True])
    def test_b025_a_client_that_leaves_frees_everything(self, stream: bool) -> None:
        gate = Gate()
        model = TinyModel(gate)

        async def scenario() -> None:
            model.application.host.start()
            await asyncio.to_thread(until, lambda: model.application.host.phase == "ready")
            exchange = Exchange(model.application.asgi, GENERATE, SAMPLED | {"max_tokens": 64, "stream": stream})
            serving = asyncio.ensure_future(exchange.run())
            for _ in range(3):
                await asyncio.to_thread(gate.wait)
                gate.pass_one()
            if stream:
                await exchange.until_sent(b"event: text")
            await asyncio.to_thread(gate.wait)
            assert model.num_held() > len(ids(PROMPT)) // 4
            exchange.leave()
            await serving
            gate.open()
            await asyncio.to_thread(model.check_at_rest, cached_tokens=len(ids(PROMPT)))
            assert b"usage" not in exchange.sent
            await model.application.host.close(drain_s=0)

        asyncio.run(scenario())
        assert [task.end for task in gate.tasks] == ["cancelled"]


def test_events_are_not_held_up_by_a_compressor() -> None:
    with service() as client:
        reply: httpx.Response = client.post(
            GENERATE, json={"prompt": "a", "stream": True}, headers={"accept-encoding": "gzip"}
        )

    assert "content-encoding" not in reply.headers
    assert events_of(reply.text)[-1][0] == "usage"
