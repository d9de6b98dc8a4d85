import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from engine.api import Configure, DraftSettings, Launch, Ready, Request, SamplingParams, StepReport
from policies.settings import PolicySettings
from specd.errors import ModelError
from specd.flights import Refusal, UnservedError
from specd.restarts import Death, Patience
from specd.supervisor import EngineFailedError, EngineState, Limits, Supervisor
from tests.daemon.conftest import FakeEngine, until
from tests.daemon.fake_engine import CRASH, FAIL, HANG

QUICK = Patience(first_delay=0.01, longest_delay=0.02)


@dataclass
class Witness:
    """Remembers what an observer is told."""

    readies: list[Ready] = field(default_factory=list)
    steps: list[StepReport] = field(default_factory=list)
    idles: int = 0
    deaths: list[Death] = field(default_factory=list)
    handed: list[str] = field(default_factory=list)

    @property
    def heard(self) -> set[str]:
        """Of which requests something was said."""
        return {output.id for report in self.steps for output in report.outputs}

    def ready(self, ready):
        self.readies.append(ready)

    def submitted(self, request, admitted):
        self.handed.append(request.id)

    def step(self, report):
        self.steps.append(report)

    def idle(self, idle):
        self.idles += 1

    def died(self, death):
        self.deaths.append(death)


@dataclass
class Setup:
    supervisor: Supervisor
    witness: Witness
    task: asyncio.Task


@contextlib.asynccontextmanager
async def supervised(engine: FakeEngine, **options) -> AsyncIterator[Setup]:
    limits = Limits(
        places=options.pop("places", 8),
        hang_seconds=options.pop("hang_seconds", 20),
        start_seconds=options.pop("start_seconds", 20),
    )
    launch = Launch(model_path="m", max_running=options.pop("max_running", 4))
    witness = Witness()
    supervisor = Supervisor(
        command=engine.command,
        launch=lambda: launch,
        limits=lambda: limits,
        window=2 * launch.max_running,
        observers=[witness],
        patience=options.pop("patience", QUICK),
    )
    task = asyncio.create_task(supervisor.run())
    try:
        yield Setup(supervisor, witness, task)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, ModelError, EngineFailedError):
            await task
        assert supervisor.pid is None


def request(prompt: list[int], *, name: str = "r", max_tokens: int = 6) -> Request:
    return Request(id=name, prompt=prompt, sampling=SamplingParams(max_tokens=max_tokens))


async def run(supervisor: Supervisor, wanted: Request) -> list[int]:
    with supervisor.flights.admit() as flight:
        supervisor.submit(flight, wanted)
        return [token async for output in flight.outputs() for token in output.tokens]


async def test_a_request_gets_its_tokens_and_observers_get_every_step(fake_engine):
    """Test that a request submitted before the engine is ready is served, and that steps are observed."""
    async with supervised(fake_engine) as setup:
        assert await run(setup.supervisor, request([10, 11, 12], max_tokens=7)) == [
            10,
            11,
            12,
            10,
            11,
            12,
            10,
        ]
        await until(lambda: sum(report.committed for report in setup.witness.steps) == 7)
        assert setup.witness.handed == ["r"]
        assert (await setup.supervisor.engine_info()).model_path == "m"


async def test_killed_engine_fails_its_requests_and_comes_back(fake_engine):
    """Test that kill -9 gives each request in flight a retryable error and that the next one is served."""
    fake_engine.behave(step_seconds=0.05)
    async with supervised(fake_engine) as setup:
        supervisor = setup.supervisor
        doomed = [
            asyncio.create_task(run(supervisor, request([9], name=f"r{n}", max_tokens=500))) for n in range(3)
        ]
        await until(lambda: len(setup.witness.heard) == 3)
        os.kill(supervisor.pid, signal.SIGKILL)
        for outcome in await asyncio.gather(*doomed, return_exceptions=True):
            assert isinstance(outcome, UnservedError)
            assert outcome.refusal.code == "engine_restarted"
            assert outcome.refusal.message == (
                "the engine stopped (signal 9) while this request ran;"
                " it is being restarted, send the request again"
            )
        assert await run(supervisor, request([9], max_tokens=2)) == [9, 9]
        assert [death.reason for death in setup.witness.deaths] == ["crash"]
        assert supervisor.restarts == 1
        assert len(supervisor.flights) == 0


async def test_only_what_had_begun_dies_with_the_engine(fake_engine):
    """Test that a request that waited inside the engine is first in the next one, and one beyond its window is after
    it.
    """
    async with supervised(fake_engine, max_running=1) as setup:
        begun, inside, outside = (
            asyncio.create_task(run(setup.supervisor, request(prompt, name=name, max_tokens=2)))
            for name, prompt in {"begun": [CRASH], "inside": [6], "outside": [7]}.items()
        )
        assert await inside == [6, 6]
        assert await outside == [7, 7]
        with pytest.raises(UnservedError, match="signal 9"):
            await begun
        assert setup.witness.handed == ["begun", "inside", "inside", "outside"]
        assert len(setup.witness.deaths) == 1


async def test_what_may_be_what_engines_die_of_is_tried_once_more(fake_engine):
    """Test that a prompt that kills before anything was said of it ends at the second engine, and the third serves."""
    fake_engine.behave(mute=True)
    async with supervised(fake_engine) as setup:
        with pytest.raises(UnservedError, match="signal 9") as lost:
            await run(setup.supervisor, request([CRASH]))
        assert lost.value.refusal.code == "engine_restarted"
        assert len(setup.witness.deaths) == 2
        assert await run(setup.supervisor, request([5], max_tokens=1)) == [5]


async def test_hanging_engine_is_killed_and_replaced(fake_engine):
    """Test that an engine that says nothing for hang_seconds is killed, with the reason in words."""
    async with supervised(fake_engine, hang_seconds=0.3) as setup:
        with pytest.raises(UnservedError, match=r"neither stepped nor said it was idle for 0\.3 s"):
            await run(setup.supervisor, request([HANG]))
        assert await run(setup.supervisor, request([5], max_tokens=1)) == [5]
        assert [death.reason for death in setup.witness.deaths] == ["hang"]


async def test_an_engine_that_speaks_nonsense_is_replaced(fake_engine):
    """Test that an unreadable frame ends the engine as a protocol fault."""
    fake_engine.behave(garbage=True)
    async with supervised(fake_engine) as setup:
        await until(lambda: setup.witness.deaths)
        assert setup.witness.deaths[0].reason == "protocol"
        fake_engine.behave()
        await until(lambda: setup.supervisor.state is EngineState.READY)


async def test_refusal_at_the_first_start_ends_the_supervisor(fake_engine):
    """Test that what the engine refuses is the user's mistake, and its sentence is kept."""
    fake_engine.behave(refuse="bloom never calls the attention function")
    async with supervised(fake_engine) as setup:
        with pytest.raises(ModelError, match="bloom never calls"):
            await setup.task


async def test_refusal_at_a_restart_is_tried_again(fake_engine):
    """Test that a model that vanished under a running daemon does not end it, and is served once back."""
    async with supervised(fake_engine) as setup:
        await until(lambda: setup.supervisor.state is EngineState.READY)
        fake_engine.behave(refuse="no such directory")
        os.kill(setup.supervisor.pid, signal.SIGKILL)
        await until(lambda: any(death.reason == "refused" for death in setup.witness.deaths))
        fake_engine.behave()
        assert await run(setup.supervisor, request([5], max_tokens=1)) == [5]


async def test_an_engine_that_never_starts_ends_the_supervisor(fake_engine):
    """Test that a crash while loading is retried a few times and then reported with how it ended."""
    fake_engine.behave(exit_loading=7)
    async with supervised(fake_engine) as setup:
        with pytest.raises(EngineFailedError, match=r"did not start in 3 tries; .* exit code 7"):
            await setup.task


async def test_slow_start_is_given_up(fake_engine):
    """Test that an engine that is not ready after start_seconds is killed."""
    fake_engine.behave(load_seconds=60)
    async with supervised(fake_engine, start_seconds=0.3) as setup:
        with pytest.raises(EngineFailedError, match=r"not ready after 0\.3 s"):
            await setup.task


async def test_requests_are_refused_while_the_engine_keeps_failing(fake_engine):
    """Test that after too many deaths in a row nobody is kept waiting, until an engine is ready again."""
    patience = Patience(first_delay=0.01, longest_delay=0.05, failures_to_refuse=2)
    async with supervised(fake_engine, patience=patience) as setup:
        await until(lambda: setup.supervisor.state is EngineState.READY)
        fake_engine.behave(exit_loading=1)
        os.kill(setup.supervisor.pid, signal.SIGKILL)
        await until(lambda: setup.supervisor.state is EngineState.FAILING)
        with pytest.raises(UnservedError) as refused:
            await run(setup.supervisor, request([5]))
        assert refused.value.refusal.code == "engine_unavailable"
        fake_engine.behave()
        await until(lambda: setup.supervisor.state is EngineState.READY)
        assert await run(setup.supervisor, request([5], max_tokens=1)) == [5]


async def test_full_house_is_told_when_to_come_back(fake_engine):
    """Test that one request more than there are places is refused with a time to retry."""
    fake_engine.behave(step_seconds=0.05)
    async with supervised(fake_engine, places=2) as setup:
        admit = setup.supervisor.flights.admit
        with admit(), admit():
            with pytest.raises(UnservedError) as refused:
                admit()
            assert refused.value.refusal.code == "queue_full"
            assert refused.value.refusal.retry_after >= 1
        with admit():
            assert len(setup.supervisor.flights) == 1


async def test_what_the_daemon_asks_itself_takes_no_place(fake_engine):
    """Test that a full house serves it and refuses clients as before, that nobody waits for its end, that it hears of
    the end of the engine, and that a house that is closed takes none."""
    async with supervised(fake_engine, places=1) as setup:
        flights = setup.supervisor.flights
        with flights.admit() as client, flights.admit_aside("own") as own:
            setup.supervisor.submit(own, request([5], name="own", max_tokens=3))
            assert [token async for output in own.outputs() for token in output.tokens] == [5, 5, 5]
            assert len(flights) == 1
            with pytest.raises(UnservedError):
                flights.admit()
            assert not client.done
        with flights.admit_aside("own") as own:
            await asyncio.wait_for(flights.empty(), 5)
            flights.lose_all(Refusal("over", "over"))
            with pytest.raises(UnservedError, match="over"):
                await own.next()
        setup.supervisor.close(Refusal("closed", "closed"))
        with pytest.raises(UnservedError, match="closed"):
            flights.admit_aside("own")


async def test_leaving_early_cancels_in_the_engine(fake_engine):
    """Test that a request left half-way is cancelled: the engine runs dry without finishing it."""
    async with supervised(fake_engine) as setup:
        supervisor = setup.supervisor
        with supervisor.flights.admit() as flight:
            supervisor.submit(flight, request([5], max_tokens=1_000_000))
            await flight.next()
        before = setup.witness.idles
        await until(lambda: setup.witness.idles > before + 1)
        assert len(supervisor.flights) == 0


async def test_an_error_of_one_request_is_its_own(fake_engine):
    """Test that an engine's error output reaches its request with the sentence, and others go on."""
    async with supervised(fake_engine) as setup:
        other = asyncio.create_task(run(setup.supervisor, request([6], name="other", max_tokens=3)))
        with pytest.raises(UnservedError, match="told to fail"):
            await run(setup.supervisor, request([FAIL]))
        assert await other == [6, 6, 6]


async def test_new_settings_reach_the_engine_and_survive_its_restart(fake_engine):
    """Test that Configure changes k at once."""
    async with supervised(fake_engine) as setup:
        await setup.supervisor.engine_info()
        setup.supervisor.configure(Configure(policy=PolicySettings(k_max=3), draft=DraftSettings()))
        await run(setup.supervisor, request([5], max_tokens=2))
        await until(lambda: setup.witness.steps)
        assert setup.witness.steps[-1].rounds[0].k == 3


async def test_ending_all_answers_those_who_wait_for_the_first_start(fake_engine):
    """Test that a shutdown during the first load answers requests in every stage of waiting."""
    fake_engine.behave(load_seconds=60)
    async with supervised(fake_engine) as setup:
        info = asyncio.create_task(setup.supervisor.engine_info())
        queued = asyncio.create_task(run(setup.supervisor, request([5])))
        await asyncio.sleep(0)
        setup.supervisor.end_all(Refusal("closing", "shutting_down"))
        for outcome in await asyncio.gather(info, queued, return_exceptions=True):
            assert isinstance(outcome, UnservedError)
            assert outcome.refusal.code == "shutting_down"


async def test_a_deaf_engine_is_killed_at_the_end(fake_engine, monkeypatch):
    """Test that an engine that does not end when told to leaves no process behind."""
    monkeypatch.setattr("specd.supervisor._END_GRACE", 0.2)
    fake_engine.behave(deaf=True)
    async with supervised(fake_engine) as setup:
        await setup.supervisor.engine_info()
        pid = setup.supervisor.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
