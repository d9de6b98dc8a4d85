"""A target that is replaced under a daemon that serves: real processes, a fake engine that echoes each prompt."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from specd.cli import main
from tests.daemon.conftest import Daemons, write_served_model
from tests.daemon.daemon_process import DaemonProcess, alive, wait_until

NO_CANARY = "[canary]\nenabled = false\n"
LONG = {"prompt": "abc", "max_tokens": 250, "specd": {"report": True}}


def other_model(directory: Path) -> Path:
    """Like the one that is served, but for its weights."""
    write_served_model(directory)
    weights = (directory / "model.safetensors").read_bytes()
    (directory / "model.safetensors").write_bytes(weights[:-1] + b"\x01")
    return directory


def update(daemon: DaemonProcess, path: Path | str, **more: str) -> httpx2.Response:
    return httpx2.post(daemon.admin + "/admin/v1/target", json={"path": str(path), **more}, timeout=30)


def rollback(daemon: DaemonProcess) -> httpx2.Response:
    return httpx2.post(daemon.admin + "/admin/v1/target/rollback", timeout=30)


def shown(daemon: DaemonProcess) -> dict:
    return daemon.get("/admin/v1/target").json()


def revision_of(answer: httpx2.Response) -> str:
    return answer.json()["specd"]["target_revision"]


def ask(daemon: DaemonProcess, **more: object) -> httpx2.Response:
    return daemon.post("/v1/completions", LONG | more)


def release(daemons: Daemons) -> None:
    """Of what is held."""
    (daemons.model.parent / "hold").unlink(missing_ok=True)


@contextlib.contextmanager
def held(daemons: Daemons, model: Path) -> Iterator[None]:
    """Engines of this model take no step, until they are released."""
    (daemons.model.parent / "hold").write_text(str(model))
    try:
        yield
    finally:
        release(daemons)


def behave(daemons: Daemons, **manners: object) -> None:
    """Of engines that start from now on."""
    beside = daemons.model.parent
    daemons.engine.behave(hold=str(beside / "hold"), shares=str(beside / "shares"), **manners)


def shares(daemons: Daemons, pid: int) -> list[str]:
    """Of the machine, that this engine was given one after another."""
    lines = (daemons.model.parent / "shares").read_text().splitlines()
    return [share for number, share in map(str.split, lines) if int(number) == pid]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemons, DaemonProcess]]:
    daemons = Daemons(tmp_path_factory.mktemp("served"))
    behave(daemons)
    yield daemons, daemons.start(NO_CANARY).ready()
    daemons.close()


@pytest.fixture
def daemons(house: tuple[Daemons, DaemonProcess]) -> Daemons:
    behave(house[0])
    return house[0]


@pytest.fixture
def daemon(house: tuple[Daemons, DaemonProcess]) -> Iterator[DaemonProcess]:
    """Left with the target that it had at first."""
    daemons, daemon = house
    yield daemon
    behave(daemons)
    assert update(daemon, daemons.model).status_code == 200


def test_nothing_to_roll_back_to(daemon):
    """Test that a rollback before any update is refused by a sentence."""
    answer = rollback(daemon)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "target_refused")
    assert "there is no previous target" in answer.json()["error"]["message"]


def test_an_update_takes_over_and_requests_end_where_they_began(daemon, daemons, tmp_path):
    """Test that a request in flight ends on its revision, that new ones get the next one, and that status and metrics
    tell of it."""
    before = daemon.status()["model"]["target_revision"]
    with ThreadPoolExecutor(1) as pool, held(daemons, daemons.model):
        old = pool.submit(ask, daemon)
        wait_until(lambda: daemon.status()["load"]["admitted"] == 1, "a request that runs")
        answer = update(daemon, other_model(tmp_path / "other")).json()
        assert (answer["result"], answer["changed"]) == ("ok", True)
        assert answer["target_revision"] != before
        assert shown(daemon)["previous"]["requests"] == 1
        assert revision_of(ask(daemon)) == answer["target_revision"]
        release(daemons)
        assert revision_of(old.result()) == before
    assert daemon.status()["model"]["target_revision"] == answer["target_revision"]
    assert f'quantization="none",revision="{answer["target_revision"]}"' in daemon.get("/metrics").text
    assert daemon.get("/v1/models").json()["data"][0]["id"] == "tiny"


def test_two_engines_that_compute_divide_the_machine(daemon, daemons, tmp_path):
    """Test that an engine loads behind the one that serves, that both have a half while the one that was left has
    requests, and that the other has all once they have ended."""
    left = daemon.status()["engine"]["pid"]
    with ThreadPoolExecutor(1) as pool, held(daemons, daemons.model):
        old = pool.submit(ask, daemon)
        wait_until(lambda: daemon.status()["load"]["admitted"] == 1, "a request that runs")
        update(daemon, other_model(tmp_path / "other"))
        new = daemon.status()["engine"]["pid"]
        wait_until(lambda: shares(daemons, new) == ["behind", "beside"], "its half")
        release(daemons)
        old.result()
    wait_until(lambda: shares(daemons, new)[-1] == "alone", "all of it")
    assert shares(daemons, left)[-1] == "beside"
    rollback(daemon)
    wait_until(lambda: shares(daemons, left)[-1] == "alone", "all of it, once it serves again")


def test_a_rollback_needs_no_start(daemon, tmp_path):
    """Test that the previous engine serves again without having been started again, and that a second rollback goes
    forward again."""
    first = daemon.status()["engine"]["pid"]
    before = shown(daemon)["current"]
    update(daemon, other_model(tmp_path / "other"))
    second = daemon.status()["engine"]["pid"]
    assert second != first
    changed = shown(daemon)["changed"]
    assert (changed["by"], changed["previous"]) == ("update", before["target_revision"])
    answer = rollback(daemon).json()
    assert answer["seconds"] < 1
    assert shown(daemon)["changed"]["by"] == "rollback"
    assert daemon.status()["engine"]["pid"] == first
    assert shown(daemon)["current"]["target_revision"] == before["target_revision"]
    assert ask(daemon).status_code == 200
    rollback(daemon)
    assert daemon.status()["engine"]["pid"] == second


def test_what_is_not_kept_is_started_for_a_rollback(daemons, tmp_path):
    """Test that with keep_seconds = 0 the previous engine ends with its last request, and a rollback starts one."""
    daemon = daemons.start(f"[model.target.update]\nkeep_seconds = 0\n{NO_CANARY}").ready()
    first, before = daemon.status()["engine"]["pid"], shown(daemon)["current"]["target_revision"]
    update(daemon, other_model(tmp_path / "other"))
    wait_until(lambda: not alive(first), "the end of the first engine")
    assert shown(daemon)["previous"] == {"path": str(daemons.model), "kept": False}
    assert rollback(daemon).json()["target_revision"] == before
    assert ask(daemon).status_code == 200


def test_a_rollback_finds_other_files_where_the_previous_target_lay(daemons, tmp_path):
    """Test that it is refused by a sentence, whether those are served already or nobody knows them."""
    daemon = daemons.start(f"[model.target.update]\nkeep_seconds = 0\n{NO_CANARY}").ready()
    place = other_model(tmp_path / "place")
    update(daemon, place)
    place.rename(tmp_path / "gone")
    write_served_model(place)
    served = update(daemon, place).json()["target_revision"]
    (place / "generation_config.json").write_text("{}")
    for _ in ("unknown", "served"):
        answer = rollback(daemon)
        assert answer.status_code == 422
        assert f"no longer in {place}: other files are there" in answer.json()["error"]["message"]
        (place / "generation_config.json").unlink(missing_ok=True)
    assert daemon.status()["model"]["target_revision"] == served


def half_written(directory: Path) -> Path:
    other_model(directory)
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-2])
    return directory


def wrong_architecture(directory: Path) -> Path:
    other_model(directory)
    config = {"model_type": "mamba", "architectures": ["MambaForCausalLM"]}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def symlink_loop(directory: Path) -> Path:
    directory.symlink_to(directory)
    return directory


BAD = {
    "half-written": (half_written, "half-written, "),
    "wrong architecture": (wrong_architecture, "mamba"),
    "vanished": (lambda directory: directory, "there is no such directory"),
    "symlink loop": (symlink_loop, "a symbolic link that leads nowhere"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_target_leaves_the_old_one_serving(case, daemon, tmp_path):
    """Test that a target that cannot be served is refused with the reason, which is shown, and nothing else changes."""
    make, sentence = BAD[case]
    before = shown(daemon)["current"]
    answer = update(daemon, make(tmp_path / "bad"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "target_refused"), answer.text
    assert sentence in answer.json()["error"]["message"]
    assert shown(daemon)["current"] == before
    assert sentence in shown(daemon)["last"]["text"]
    assert refusals(daemon) == []  # whoever asked was told
    assert ask(daemon).status_code == 200
    assert "Traceback" not in daemon.log


@pytest.mark.parametrize(
    ("manners", "sentence"),
    [
        ({"refuse": "its weights are made of cheese"}, "its weights are made of cheese"),
        ({"exit_loading": 1}, "did not start in 3 tries"),
    ],
)
def test_an_engine_that_does_not_start_leaves_the_old_one_serving(
    manners, sentence, daemon, daemons, tmp_path
):
    """Test that what only the engine finds out refuses the update, and that no engine is left behind."""
    pid, engines = daemon.status()["engine"]["pid"], {daemon.status()["engine"]["pid"]}
    behave(daemons, **manners)
    answer = update(daemon, other_model(tmp_path / "other"))
    assert answer.status_code == 422
    assert sentence in answer.json()["error"]["message"]
    assert daemon.status()["engine"]["pid"] == pid
    assert ask(daemon).status_code == 200
    assert set(engines_of(daemon)) == engines


def engines_of(daemon: DaemonProcess) -> list[int]:
    """Processes whose parent is the daemon."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == daemon.process.pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def test_the_same_target_is_no_update(daemon, daemons):
    """Test that what is served already is told to be, and no engine is started for it."""
    engines = set(engines_of(daemon))
    answer = update(daemon, daemons.model).json()
    assert (answer["result"], answer["changed"]) == ("ok", False)
    assert set(engines_of(daemon)) == engines


def test_the_same_target_at_another_place_is_read_there(daemon, tmp_path):
    """Test that it is no update, and that the place where it lay may go."""
    first = other_model(tmp_path / "first")
    update(daemon, first)
    second = Path(shutil.copytree(first, tmp_path / "second"))
    assert update(daemon, second).json()["changed"] is False
    shutil.rmtree(first)
    restarts = daemon.status()["engine"]["restarts"]
    os.kill(daemon.status()["engine"]["pid"], 9)
    wait_until(lambda: daemon.status()["engine"]["restarts"] == restarts + 1, "the restart")
    assert ask(daemon).status_code == 200
    assert daemon.status()["engine"]["info"]["model_path"] == str(second)


def test_one_change_at_a_time(daemon, daemons, tmp_path):
    """Test that a second update is refused while the first one loads, and that the first one succeeds."""
    behave(daemons, load_seconds=1.0)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(update, daemon, other_model(tmp_path / "other"))
        wait_until(lambda: shown(daemon)["doing"], "the first update")
        second = rollback(daemon)
        assert (second.status_code, second.json()["error"]["code"]) == (409, "update_under_way")
        assert first.result().status_code == 200


def test_an_update_goes_on_without_whoever_asked(daemon, daemons, tmp_path):
    """Test that an update whose client has gone is finished."""
    behave(daemons, load_seconds=1.0)
    other = other_model(tmp_path / "other")
    with pytest.raises(httpx2.TimeoutException):
        httpx2.post(daemon.admin + "/admin/v1/target", json={"path": str(other)}, timeout=0.3)
    wait_until(lambda: shown(daemon)["current"]["path"] == str(other), "the update")


def test_the_end_of_the_daemon_is_the_end_of_all_engines(daemons, tmp_path):
    """Test that SIGTERM ends the engine that serves and the one that is kept."""
    daemon = daemons.start(NO_CANARY).ready()
    update(daemon, other_model(tmp_path / "other"))
    engines = engines_of(daemon)
    assert len(engines) == 2
    daemon.process.terminate()
    assert daemon.wait() == 0
    assert not any(map(alive, engines))
    assert "Traceback" not in daemon.log


def test_an_update_that_the_end_overtakes_is_answered(daemons, tmp_path):
    """Test that whoever waits for an update when the daemon is told to end hears so, and that this is no fault."""
    daemon = daemons.start(NO_CANARY).ready()
    daemons.engine.behave(load_seconds=1000)
    other = other_model(tmp_path / "other")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(update, daemon, other)
        wait_until(lambda: daemon.get("/admin/v1/target").json()["doing"], "the update")
        daemons.engine.behave()  # the next test's engines load
        daemon.process.terminate()
        assert daemon.wait() == 0
    assert answer.result().status_code == 422
    assert "since the server is shutting down" in answer.result().json()["error"]["message"]
    assert "Traceback" not in daemon.log


def test_a_dead_engine_comes_back_with_the_updated_target(daemon, tmp_path):
    """Test that after an update a crash restarts the new target, not that of the config."""
    other = other_model(tmp_path / "other")
    revision = update(daemon, other).json()["target_revision"]
    os.kill(daemon.status()["engine"]["pid"], 9)
    wait_until(lambda: daemon.status()["engine"]["restarts"] == 1, "the restart")
    assert revision_of(ask(daemon)) == revision
    assert daemon.status()["engine"]["info"]["model_path"] == str(other)


def test_the_command(daemon, tmp_path, capsys, monkeypatch):
    """Test that `specd target` shows, updates, names revisions and rolls back, and that a refusal exits 2."""
    monkeypatch.chdir(tmp_path)
    other_model(tmp_path / "other")
    admin = ["--admin", daemon.admin.removeprefix("http://")]
    assert main(["target", "update", "other", "--revision", "r2", *admin]) == 0
    assert "other serves now" in capsys.readouterr().out
    assert main(["target", "show", *admin]) == 0
    assert "r2" in capsys.readouterr().out
    assert main(["target", "rollback", *admin]) == 0
    assert "serves again" in capsys.readouterr().out
    assert main(["target", "update", "nowhere", *admin]) == 2
    assert "nowhere: there is no such directory" in capsys.readouterr().err
    bad = httpx2.post(daemon.admin + "/admin/v1/target", json={"pth": "x"})
    assert (bad.status_code, bad.json()["error"]["code"]) == (400, "invalid_body")


def test_requests_can_begin_anew_on_the_next_target(daemons, tmp_path):
    """Test that with in_flight = "rerun" a request that runs is answered by the new target, and a stream that has begun
    by the old one."""
    daemon = daemons.start(f'[model.target.update]\nin_flight = "rerun"\n{NO_CANARY}').ready()
    before = daemon.status()["model"]["target_revision"]
    with ThreadPoolExecutor(1) as pool, held(daemons, daemons.model):
        whole = pool.submit(ask, daemon)
        wait_until(lambda: daemon.status()["load"]["admitted"] == 1, "a request that runs")
        with httpx2.stream("POST", daemon.url + "/v1/completions", json=LONG | {"stream": True}) as streamed:
            after = update(daemon, other_model(tmp_path / "other")).json()["target_revision"]
            assert revision_of(whole.result()) == after
            assert whole.result().json()["usage"]["completion_tokens"] == 250
            release(daemons)
            events = [line for line in streamed.iter_lines() if "target_revision" in line]
    assert len(events) == 1
    assert before in events[0]


def test_without_memory_for_two_the_new_engine_takes_the_place_of_the_old_one(daemons, tmp_path):
    """Test that requests end, others wait without an error, and that the rollback takes the same way."""
    behave(daemons, alone=str(tmp_path / "memory"))
    daemon = daemons.start(NO_CANARY).ready()
    before = daemon.status()["model"]["target_revision"]
    with ThreadPoolExecutor(3) as pool, held(daemons, daemons.model):
        old = pool.submit(ask, daemon)
        wait_until(lambda: daemon.status()["load"]["admitted"] == 1, "a request that runs")
        updating = pool.submit(update, daemon, other_model(tmp_path / "other"))
        wait_until(lambda: "requests are held" in daemon.log, "the door to be shut")
        waits = pool.submit(ask, daemon)
        release(daemons)
        after = updating.result().json()["target_revision"]
        assert (revision_of(old.result()), revision_of(waits.result())) == (before, after)
    assert len(engines_of(daemon)) == 1
    assert rollback(daemon).json()["target_revision"] == before
    assert revision_of(ask(daemon)) == before


def test_without_memory_for_two_a_fault_brings_the_old_engine_back(daemons, tmp_path):
    """Test that a target that turns out bad in the place of the old one is refused and the old one serves again."""
    memory = str(tmp_path / "memory")
    behave(daemons, alone=memory)
    daemon = daemons.start(NO_CANARY).ready()
    before = daemon.status()["model"]["target_revision"]
    behave(daemons, alone=memory, refuse_model="other", refuse="its weights are made of cheese")
    answer = update(daemon, other_model(tmp_path / "other"))
    assert answer.status_code == 422
    assert "made of cheese" in answer.json()["error"]["message"]
    assert revision_of(ask(daemon)) == before
    assert len(engines_of(daemon)) == 1


def test_room_can_be_demanded(daemons, tmp_path):
    """Test that with room = "beside" an update that memory does not hold is refused, with the engine's reason."""
    behave(daemons, alone=str(tmp_path / "memory"))
    daemon = daemons.start(f'[model.target.update]\nroom = "beside"\n{NO_CANARY}').ready()
    pid = daemon.status()["engine"]["pid"]
    answer = update(daemon, other_model(tmp_path / "other"))
    assert "memory holds one engine" in answer.json()["error"]["message"]
    assert daemon.status()["engine"]["pid"] == pid


def test_a_reload_updates_the_target(daemons, tmp_path):
    """Test that a config with another target is taken over by an update, and refused as a whole where that fails."""
    daemon = daemons.start(NO_CANARY).ready()
    before = daemon.status()["model"]["target_revision"]
    config = daemon.config_file.read_text()
    admin = ["--admin", daemon.admin.removeprefix("http://")]
    daemon.config_file.write_text(
        config.replace(str(daemons.model), str(tmp_path / "nowhere")) + "[policy]\nk_max = 1\n"
    )
    assert main(["reload", "--wait", *admin]) == 2
    assert daemon.get("/admin/v1/config").json()["config"]["policy"]["k_max"] == 8
    assert daemon.status()["model"]["target_revision"] == before
    other = other_model(tmp_path / "other")
    daemon.config_file.write_text(config.replace(str(daemons.model), str(other)) + "[policy]\nk_max = 1\n")
    assert main(["reload", "--wait", *admin]) == 0
    assert daemon.status()["model"]["target_revision"] != before
    assert daemon.get("/admin/v1/config").json()["config"]["policy"]["k_max"] == 1
    assert shown(daemon)["current"]["path"] == str(other)


def refusals(daemon: DaemonProcess) -> list[str]:
    """States of the alerts of updates that were refused."""
    alerts = daemon.get("/admin/v1/alerts").json()["alerts"]
    return [one["state"] for one in alerts if one["name"] == "SpecdTargetUpdateRefused"]


def test_a_swapped_link_updates_the_target(daemons, tmp_path):
    """Test that with watch_seconds a link that leads elsewhere is followed, that a half-written model is refused, left
    alone, and served once it is whole, which an alert tells of meanwhile, and that what the link led to before is what
    an engine that died comes back with after the refusal, and what a rollback serves when no engine is kept."""
    link, served = tmp_path / "current", daemons.model
    link.symlink_to(served)
    daemons.model = link
    try:
        daemon = daemons.start(
            f"[model.target.update]\nwatch_seconds = 0.05\nkeep_seconds = 0\n{NO_CANARY}"
        ).ready()
    finally:
        daemons.model = served
    before = daemon.status()["model"]["target_revision"]

    def lead_to(model: Path) -> None:
        (tmp_path / "spare").symlink_to(model)
        (tmp_path / "spare").replace(link)

    lead_to(half_written(tmp_path / "half"))
    wait_until(lambda: "half-written" in daemon.log, "the refusal")
    assert daemon.status()["model"]["target_revision"] == before
    wait_until(lambda: refusals(daemon) == ["firing"], "the alert of the refusal")
    assert daemon.metric('specd_target_updates_total{outcome="refused"}') == 1
    first = daemon.status()["engine"]["pid"]
    os.kill(first, 9)
    wait_until(lambda: daemon.status()["engine"]["restarts"] == 1, "the restart")
    assert daemon.status()["engine"]["info"]["model_path"] == str(served)
    (other_model(tmp_path / "whole") / "model.safetensors").replace(tmp_path / "half" / "model.safetensors")
    wait_until(lambda: daemon.status()["model"]["target_revision"] != before, "the update")
    assert daemon.log.count("what lies in") == 1
    wait_until(lambda: refusals(daemon) == ["resolved"], "the end of the alert")
    assert daemon.metric('specd_target_updates_total{outcome="changed"}') == 1
    wait_until(lambda: len(engines_of(daemon)) == 1, "the end of the first engine")
    assert rollback(daemon).json()["target_revision"] == before
    assert daemon.status()["engine"]["info"]["model_path"] == str(served)


def test_bodies_that_ask_for_nothing(daemon):
    """Test that an update names a path or weights, and not both."""
    for body in ({}, {"path": "a", "weights": "b"}, {"path": 1}, {"pth": "a"}):
        answer = httpx2.post(daemon.admin + "/admin/v1/target", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_body")


def test_a_pushed_file_is_served(daemon, daemons, tmp_path, capsys):
    """Test that `specd target refresh` serves the target with a file's tensors, and refuses one that does not fit."""
    admin = ["--admin", daemon.admin.removeprefix("http://")]
    file = tmp_path / "step.safetensors"
    weights = (daemons.model / "model.safetensors").read_bytes()
    file.write_bytes(weights[:-1] + b"\x02")
    assert main(["target", "refresh", str(file), "--revision", "step-7", *admin]) == 0
    assert daemon.status()["model"]["target_revision"] == "step-7"
    assert ask(daemon).status_code == 200
    file.write_bytes(weights[:-1])
    assert main(["target", "refresh", str(file), *admin]) == 2
    assert "half-written" in capsys.readouterr().err
    assert daemon.status()["model"]["target_revision"] == "step-7"
