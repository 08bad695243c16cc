from __future__ import annotations

import asyncio
import threading

import pytest

from scorer.errors import NotReady
from scorer.model_host import LoadedModel, ModelHost, namespace_of
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.service import fake_model


def host_of(engine: FakeEngine, may_load: threading.Event | None = None) -> ModelHost:
    def load() -> LoadedModel:
        if may_load is not None:
            may_load.wait(20)
        return fake_model(engine)

    return ModelHost(load, lambda _: None, require_self_test=True, on_loaded=lambda *_: None)


async def settled(host: ModelHost) -> None:
    async with asyncio.timeout(20):
        while host.phase == "loading":
            await asyncio.sleep(0.001)


def test_a_model_is_served_once_it_is_loaded_and_until_the_drain() -> None:
    async def scenario() -> None:
        engine = FakeEngine()
        host = host_of(engine)
        with pytest.raises(NotReady):
            host.require()
        host.start()
        await settled(host)
        assert host.require().engine is engine
        host.begin_drain()
        with pytest.raises(NotReady):
            host.require()
        assert host.is_alive()
        await host.close(drain_s=1.5)
        assert engine.closed_with == 1.5
        assert host.phase == "closed"
        assert host.is_alive()

    asyncio.run(scenario())


def test_a_model_that_arrives_after_the_drain_began_does_not_reopen_the_service() -> None:
    async def scenario() -> None:
        may_load = threading.Event()
        host = host_of(FakeEngine(), may_load)
        host.start()
        host.begin_drain()
        may_load.set()
        async with asyncio.timeout(20):
            while host.model is None:
                await asyncio.sleep(0.001)
        assert host.phase == "draining"
        assert host.readiness() is not None

    asyncio.run(scenario())


def test_closing_does_not_wait_for_a_load() -> None:
    may_load = threading.Event()

    async def scenario() -> None:
        host = host_of(FakeEngine(), may_load)
        host.start()
        await host.close(drain_s=0.0)
        assert host.is_loading

    asyncio.run(scenario())
    may_load.set()


def test_the_namespace_is_the_revision_of_the_model() -> None:
    assert namespace_of(FakeEngine().info) == "rev1"


class Unfit(Exception):
    """Says all there is to say."""


@pytest.mark.parametrize(("error", "traced"), [(Unfit("no such device"), False), (KeyError("surprise"), True)])
def test_an_error_that_explains_itself_is_one_line_and_any_other_comes_with_its_trace(
    error: Exception, caplog: pytest.LogCaptureFixture, *, traced: bool
) -> None:
    def load() -> LoadedModel:
        raise error

    async def scenario() -> str | None:
        host = ModelHost(load, lambda _: None, require_self_test=True, on_loaded=lambda *_: None, expected=(Unfit,))
        host.start()
        await settled(host)
        return host.readiness()

    reason = asyncio.run(scenario())

    (logged,) = caplog.records
    assert logged.getMessage() == reason == f"the model cannot be loaded: {error}"
    assert (logged.exc_info is not None) == traced
