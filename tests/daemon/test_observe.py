"""Engines of others, looked at over HTTP: what is evidence, is it another target, and what the alarm hears of it."""

import asyncio
from contextlib import contextmanager
from math import isnan

import pytest

from specd.alerts.lifecycle import State
from specd.alerts.manager import AlertManager
from specd.config.observe import ObserveSection
from specd.config.schema import Config
from specd.errors import UserError
from specd.observe.errors import ObserveError
from specd.observe.findings import canary
from specd.observe.observer import FAILED, OWN, Observer
from specd.observe.observing import Observing
from specd.observe.target import Same
from specd.target.canary import shipped_prompts
from specd.telemetry.prometheus import Metrics
from tests.daemon.conftest import until
from tests.daemon.observed_engine import ROUNDS, ObservedEngine
from tests.daemon.test_alerts_manager import Clock, Told

PROMPTS = 16


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch) -> None:
    monkeypatch.setattr("specd.observe.replay._PAUSE", 0.02)


class Rig:
    """One observer of one engine, told when to look; time is set by the test."""

    def __init__(self, tmp_path, server: ObservedEngine, **keys) -> None:
        self.server = server
        self.clock = Clock()
        tmp_path.mkdir(exist_ok=True)
        self.prompts = tmp_path / "prompts.jsonl"
        if not self.prompts.exists():
            self.prompts.write_text("".join(f'{{"prompt": "question {n}"}}\n' for n in range(PROMPTS)))
        section = ObserveSection(
            **{"name": "peer", "url": server.url, "canary_patience_seconds": 0.0, **keys}
        )
        self.config = Config(observe=(section,), canary={"prompts": self.prompts})
        self.judged = 0
        self.observer = Observer(
            section, tmp_path / "peer", lambda: self.config, judged=self._note, clock=self.clock
        )

    def _note(self, _) -> None:
        self.judged += 1

    async def look(self, seconds: float = 10.0) -> None:
        """As the loop does."""
        self.clock.now += seconds
        try:
            await self.observer.look()
        except ObserveError as error:
            self.observer._failed(str(error))

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_) -> None:
        await self.observer.aclose()


@contextmanager
def served(**values):
    with ObservedEngine(**values).running() as server:
        yield server


async def known(rig: Rig) -> None:
    """Met, asked, and asked again, so that it is known how much its answers differ."""
    await rig.look()
    await rig.observer.replay()
    await rig.observer.replay()


@pytest.mark.parametrize("kind", ["vllm", "llamacpp"])
async def test_traffic_becomes_reports(tmp_path, kind) -> None:
    with served(kind=kind) as server:
        async with Rig(tmp_path, server) as rig:
            await rig.look()
            server.traffic(400, (0.7, 0.5, 0.2), requests=20)
            await rig.look()
            report = rig.observer.last_report
            assert rig.observer.kind == kind
            assert (report.examined, report.accepted) == ((400, 280, 200), (280, 200, 80))
            assert rig.observer.totals["drafts"] == 400


async def test_a_restart_between_two_looks_is_no_evidence(tmp_path) -> None:
    with served() as server:
        async with Rig(tmp_path, server) as rig:
            await rig.look()
            server.traffic(400, (0.7, 0.5, 0.2), requests=20)
            server.restart()
            server.traffic(900, (0.1, 0.0, 0.0), requests=50)  # more than was counted before
            await rig.look()
            assert rig.observer.outcomes["restarted"] == 1
            assert rig.observer.totals["reports"] == 0


async def test_rounds_that_nobody_had_are_left_out(tmp_path) -> None:
    with served() as server:
        async with Rig(tmp_path, server) as rig:
            await rig.look()
            server.traffic(0, (0.0, 0.0, 0.0), requests=0, phantom=500)
            await rig.look()
            server.traffic(400, (0.7, 0.5, 0.2), requests=20)
            await rig.look()
            assert rig.observer.outcomes["phantom"] == 1
            assert rig.observer.last_report.examined[0] == 400


async def test_an_idle_engine_shows_nothing(tmp_path) -> None:
    with served() as server:
        async with Rig(tmp_path, server) as rig:
            await rig.look()
            await rig.look()
            assert rig.observer.outcomes["idle"] == 1
            assert rig.observer.fault is None


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("down", "answers 503: no"),
        ("html", "answers a web page"),
        ("garbage", "no page of metrics"),
        ("slow", "did not answer within 1 s"),
    ],
)
async def test_a_look_that_fails_says_why_and_the_next_one_goes_on(tmp_path, fault, said) -> None:
    patience = 1.0 if fault == "slow" else 30.0  # on a busy machine the others are slow as well
    with served() as server:
        async with Rig(tmp_path, server, timeout_seconds=patience) as rig:
            await rig.look()
            server.fault = fault
            await rig.look()
            assert said in rig.observer.fault
            server.fault = None
            server.traffic(400, (0.7, 0.5, 0.2), requests=20)
            await rig.look()
            assert rig.observer.fault is None
            assert rig.observer.outcomes[FAILED] == 1
            assert rig.observer.last_report.examined[0] == 400, "the same process: nothing was lost"


async def test_where_nothing_tells_one_process_from_the_next_a_failure_may_hide_a_restart(tmp_path) -> None:
    with served(kind="llamacpp") as server:
        async with Rig(tmp_path, server) as rig:
            await known(rig)
            server.fault = "down"
            await rig.look()
            server.fault = None
            server.traffic(9000, (0.1, 0.0, 0.0))
            await rig.look()
            assert rig.observer.totals["reports"] == 0
            assert rig.observer.target.same is Same.UNKNOWN


async def test_nobody_at_the_url_is_told_as_such(tmp_path) -> None:
    with served() as server:
        url = server.url
    async with Rig(tmp_path, ObservedEngine(url=url)) as rig:
        await rig.look()
        assert "cannot be asked" in rig.observer.fault


async def test_the_time_of_the_question_is_no_part_of_what_is_served(tmp_path) -> None:
    """`created` is another one each time."""
    with served() as server:
        async with Rig(tmp_path, server) as rig:
            await known(rig)
            assert rig.observer.target.same is Same.YES
            assert server.asked.count("models") >= 3


async def test_another_model_behind_the_url_is_another_target(tmp_path) -> None:
    with served() as server:
        async with Rig(tmp_path, server) as rig:
            await known(rig)
            before = rig.observer.target.revision
            server.restart(root="/models/other")
            await rig.look()
            assert rig.observer.target.same is Same.NO
            assert rig.observer.target.differences == ["root was /models/demo, is /models/other"]
            assert rig.observer.target.revision != before


@pytest.mark.parametrize("kind", ["vllm", "llamacpp"])
async def test_other_weights_under_the_same_name_are_found_by_their_answers(tmp_path, kind) -> None:
    with served(kind=kind) as server:
        async with Rig(tmp_path, server) as rig:
            await known(rig)
            before = rig.observer.target.revision
            server.traffic(50, (0.5, 0.4, 0.1))
            await rig.look()
            server.restart(target="two")
            await rig.look()
            assert rig.observer.target.same is Same.UNKNOWN
            assert rig.observer.target.wanted
            await rig.observer.replay()
            assert rig.observer.target.same is Same.NO
            assert rig.observer.target.texts.differed == PROMPTS
            assert rig.observer.target.revision == f"{before}.1"


async def test_the_same_weights_after_a_restart_are_the_same_target(tmp_path) -> None:
    with served() as server:
        async with Rig(tmp_path, server) as rig:
            await known(rig)
            server.restart()
            await rig.look()
            await rig.observer.replay()
            assert rig.observer.target.same is Same.YES


async def test_what_is_known_outlives_the_daemon(tmp_path) -> None:
    with served() as server:
        async with Rig(tmp_path, server) as rig:
            await known(rig)
        server.target = "two"
        async with Rig(tmp_path, server) as again:
            await again.look()
            assert again.observer.target.same is Same.UNKNOWN
            await again.observer.replay()
            assert again.observer.target.same is Same.NO


async def test_a_target_that_was_accepted_is_the_known_one(tmp_path) -> None:
    with served() as server:
        async with Rig(tmp_path, server) as rig:
            await known(rig)
            server.restart(target="two")
            await rig.look()
            await rig.observer.replay()
            revision = rig.observer.target.revision
            rig.observer.accept()
            assert rig.observer.target.same is Same.YES
            assert rig.observer.target.revision == revision
            await rig.observer.replay()
            assert rig.observer.target.same is Same.YES


async def test_a_draft_that_fell_is_found_by_the_counters_around_each_answer(tmp_path) -> None:
    with served() as server:
        async with Rig(tmp_path, server) as rig:
            await known(rig)
            assert rig.observer.target.drafts.verdict == "fine"
            server.restart(target="two", kept=(0.25, 0.0, 0.0))
            await rig.look()
            await rig.observer.replay()
            found = rig.observer.target.drafts
            assert found.verdict == "bad"
            assert found.examined == PROMPTS * (ROUNDS + 3)
            assert found.after == pytest.approx(3 / 15)
            assert canary(rig.observer).labels["target_revision"] == rig.observer.target.revision


async def test_what_others_were_served_meanwhile_is_not_taken_for_the_canarys_own(tmp_path) -> None:
    with served() as server:
        async with Rig(tmp_path, server) as rig:
            await known(rig)
            server.crowd = 7
            await rig.observer.replay()
            assert rig.observer.target.drafts is None
            assert rig.observer.target.same is Same.YES


async def test_the_canarys_own_requests_are_no_traffic(tmp_path) -> None:
    with served() as server:
        async with Rig(tmp_path, server) as rig:
            await known(rig)
            await rig.look()
            assert rig.observer.outcomes[OWN] == 2
            assert rig.observer.totals["drafts"] == 0


async def test_two_observers_of_one_engine_do_not_count_each_other(tmp_path) -> None:
    """What both ask at once is left out by both; what is left is each one's own."""
    with served() as server:
        async with Rig(tmp_path / "a", server) as one, Rig(tmp_path / "b", server) as other:
            await asyncio.gather(one.look(), other.look())
            await asyncio.gather(one.observer.replay(), other.observer.replay())
            for rig in (one, other):
                drafts = [found for found in rig.observer.target.known.first.drafts if found is not None]
                assert all(found.examined[0] == ROUNDS for found in drafts)


async def test_an_engine_that_does_not_speculate_is_known_by_its_answers_all_the_same(tmp_path) -> None:
    with served() as server:
        server.samples = lambda: iter(["vllm:num_requests_running 0"])
        async with Rig(tmp_path, server) as rig:
            await known(rig)
            assert not rig.observer.speculates
            server.target = "two"
            await rig.observer.replay()
            assert rig.observer.target.same is Same.NO


async def test_an_engine_without_metrics_is_known_by_its_answers(tmp_path) -> None:
    with served() as server:
        server.fault = "down"
        async with Rig(tmp_path, server, kind="transformers") as rig:
            await known(rig)
            assert rig.observer.fault is None
            server.target = "two"
            await rig.observer.replay()
            assert rig.observer.target.same is Same.NO


async def test_a_model_without_a_chat_template_is_asked_to_complete(tmp_path) -> None:
    with served(chats=False) as server:
        async with Rig(tmp_path, server) as rig:
            await known(rig)
            assert rig.observer.target.same is Same.YES
            assert [body.get("prompt") for body in server.bodies[1:3]] == ["question 0", "question 1"]


@pytest.mark.parametrize("chats", [True, False])
async def test_a_swap_between_models_with_and_without_a_chat_template_is_noticed(tmp_path, chats) -> None:
    """Test that answers which are had in another way are compared with the known ones, and do not replace them."""
    with served(chats=chats) as server:
        async with Rig(tmp_path, server) as rig:
            await known(rig)
            first = rig.observer.target.known.first
            server.restart(target="two", chats=not chats)
            await rig.look()
            await rig.observer.replay()
            assert rig.observer.target.same is Same.NO
            assert rig.observer.target.known.first == first


@pytest.mark.parametrize("status", [401, 403, 408, 429])
async def test_an_engine_that_lets_nobody_in_for_now_is_not_asked_in_another_way(tmp_path, status) -> None:
    """Test that such a replay says why it failed, asks nothing more, and leaves what is known as it is."""
    with served() as server:
        async with Rig(tmp_path, server) as rig:
            await known(rig)
            first, asked = rig.observer.target.known.first, len(server.bodies)
            server.refuses = status
            with pytest.raises(ObserveError, match=f"answers {status}"):
                await rig.observer.replay()
            assert len(server.bodies) == asked + 1
            server.refuses = None
            await rig.observer.replay()
            assert rig.observer.target.same is Same.YES
            assert rig.observer.target.known.first == first


async def test_an_engine_that_breaks_in_the_middle_of_a_replay_is_no_other_target(tmp_path) -> None:
    with served() as server:
        async with Rig(tmp_path, server) as rig:
            await known(rig)
            server.breaks_after = len(server.bodies) + 5
            with pytest.raises(ObserveError, match="answers 500"):
                await rig.observer.replay()
            assert rig.observer.target.same is Same.YES


async def test_a_server_without_metrics_that_is_gone_is_noticed(tmp_path) -> None:
    with served() as server:
        async with Rig(tmp_path, server, kind="transformers") as rig:
            await rig.look()
            assert rig.observer.fault is None
            url = server.url
    async with Rig(tmp_path, ObservedEngine(url=url), kind="transformers") as rig:
        await rig.look()
        assert "cannot be asked" in rig.observer.fault


async def test_the_model_that_is_asked_for_must_be_there(tmp_path) -> None:
    with served() as server:
        async with Rig(tmp_path, server, model="other") as rig:
            await rig.look()
            assert rig.observer.fault == "it does not serve other: at /v1/models are demo"


def test_the_packages_prompts_are_enough_to_tell_targets_apart() -> None:
    assert len(shipped_prompts()) >= PROMPTS


class Whole:
    """All of it with an alarm, as the daemon has it; it looks by itself."""

    def __init__(self, tmp_path, *sections: ObserveSection, prompts: int = PROMPTS) -> None:
        tmp_path.mkdir(exist_ok=True)
        file = tmp_path / "prompts.jsonl"
        file.write_text("".join(f'{{"prompt": "question {n}"}}\n' for n in range(prompts)))
        self.config = Config(observe=sections, canary={"prompts": file})
        self.told = Told()
        self.metrics = Metrics(version="test")
        self.alerts = AlertManager(self.config.alerts, self.metrics.alarm, self.told)
        self.observing = Observing(lambda: self.config, tmp_path / "observe", self.alerts)
        self.metrics.include(self.observing)

    async def __aenter__(self):
        self.observing.configure(self.config)
        self.alerts.start()
        return self

    async def __aexit__(self, *_) -> None:
        await self.observing.aclose()
        await self.alerts.aclose()

    def one(self) -> dict:
        (found,) = self.observing.snapshot()
        return found

    def firing(self, name: str) -> list:
        return [
            alert
            for alert in self.alerts.snapshot()
            if alert["name"] == name and alert["state"] == State.FIRING.value
        ]

    def reconfigure(self, *sections: ObserveSection) -> None:
        self.config = self.config.model_copy(update={"observe": sections})
        self.observing.configure(self.config)


def quick(server: ObservedEngine, **keys) -> ObserveSection:
    return ObserveSection(
        **{"name": "peer", "url": server.url, "every_seconds": 0.1, "canary_seconds": 0.2, **keys}
    )


async def test_a_swapped_target_is_alerted_and_the_alert_ends_when_it_is_accepted(tmp_path) -> None:
    with served() as server:
        async with Whole(tmp_path, quick(server)) as whole:
            await until(lambda: whole.one()["looks"]["canary"] >= 2)
            server.restart(target="two")
            await until(lambda: whole.firing("SpecdTargetChanged"))
            (alert,) = whole.firing("SpecdTargetChanged")
            assert alert["labels"]["observed"] == "peer"
            assert f"{PROMPTS} of {PROMPTS} answers" in alert["annotations"]["description"]
            assert b'specd_observe_target_changed{engine="peer"} 1.0' in whole.metrics.render()
            whole.observing.accept("peer")
            await until(lambda: not whole.firing("SpecdTargetChanged"))
            with pytest.raises(UserError, match="nothing to accept"):
                whole.observing.accept("peer")


async def test_alerts_about_another_engine_outlive_an_update_of_ones_own(tmp_path) -> None:
    with served() as server:
        async with Whole(tmp_path, quick(server)) as whole:
            await until(lambda: whole.one()["looks"]["canary"] >= 2)
            server.restart(target="two", kept=(0.25, 0.0, 0.0))
            await until(lambda: whole.firing("SpecdAcceptanceDrift"))
            whole.alerts.set_identity("own", "draft")
            (alert,) = whole.firing("SpecdAcceptanceDrift")
            assert alert["labels"]["kind"] == "canary"


async def test_an_engine_that_is_gone_is_alerted_until_it_is_back(tmp_path) -> None:
    with served() as server:
        async with Whole(tmp_path, quick(server, down_seconds=0.0)) as whole:
            await until(lambda: whole.one()["fault"] is None)
            server.fault = "down"
            await until(lambda: whole.firing("SpecdObservedDown"))
            server.fault = None
            await until(lambda: not whole.firing("SpecdObservedDown"))


async def test_engines_come_and_go_by_the_config(tmp_path) -> None:
    with served() as server:
        async with Whole(tmp_path, quick(server, down_seconds=0.0)) as whole:
            server.fault = "down"
            await until(lambda: whole.firing("SpecdObservedDown"))
            whole.reconfigure()
            assert whole.observing.snapshot() == []
            await until(lambda: not whole.firing("SpecdObservedDown"))
            server.fault = None
            whole.reconfigure(quick(server, name="again"))
            await until(lambda: whole.one()["fault"] is None)


async def test_what_is_hot_changes_without_a_new_beginning(tmp_path) -> None:
    with served() as server:
        async with Whole(tmp_path, quick(server)) as whole:
            await until(lambda: whole.one()["looks"]["canary"] >= 2)
            whole.reconfigure(quick(server, every_seconds=0.15, report_drafts=100))
            assert whole.one()["looks"]["canary"] >= 2
            whole.reconfigure(quick(server, model="demo"))
            assert whole.one()["looks"]["canary"] == 0


async def test_metrics_of_what_is_not_known_are_no_numbers(tmp_path) -> None:
    with served() as server:
        server.fault = "down"
        async with Whole(tmp_path, quick(server)) as whole:
            await until(lambda: whole.one()["looks"]["failed"])
            text = whole.metrics.render().decode()
            assert 'specd_observe_up{engine="peer"} 0.0' in text
            assert 'specd_observe_acceptance{engine="peer"} NaN' in text
            assert isnan(
                float(text.split('specd_observe_canary_timestamp_seconds{engine="peer"} ')[1].split()[0])
            )


def test_a_url_may_be_written_with_what_openais_clients_append() -> None:
    assert ObserveSection(name="a", url="http://host:8000/v1/").metrics == "http://host:8000/metrics"


def test_passwords_in_urls_are_shown_to_nobody(tmp_path) -> None:
    section = ObserveSection(name="peer", url="http://me:secret@127.0.0.1:9")
    observer = Observer(section, tmp_path, Config, judged=lambda _: None)
    with pytest.raises(ObserveError) as failed:
        asyncio.run(observer.look())
    assert "secret" not in str(failed.value)
