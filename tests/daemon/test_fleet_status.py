"""`specd fleet status` at a real mosquitto, and the dashboard's fleet in a real Chromium."""

import asyncio
import json
from pathlib import Path
from typing import Any

from playwright.async_api import async_playwright
from playwright.async_api import expect as expect_async

from specd.cli import main
from specd.fleet.fleet import MOST_NODES
from tests.daemon.bridge_rig import bridged
from tests.daemon.browser import ARTEFACTS, PROGRAM, needs_chromium
from tests.daemon.conftest import until
from tests.daemon.fleet_rig import ALERT, publish, target
from tests.daemon.mosquitto import Mosquitto, needs_mosquitto, spying

pytestmark = needs_mosquitto


def config_at(broker: Mosquitto, directory: Path, extra: str = "") -> str:
    file = directory / "specd.toml"
    file.write_text(f'[mqtt]\nurl = "{broker.url}"\n{extra}')
    return str(file)


async def status(config: str, *options: str) -> int:
    return await asyncio.to_thread(main, ["fleet", "status", "-c", config, *options])


async def fleet_of_three(spy) -> None:
    refused = {"unix_time": 1_764_430_000.0, "text": "/models/t2 needs 9 GiB, and 4 GiB are free"}
    await publish(spy, "gpu-1", target("t2", "update"))
    await publish(
        spy,
        "gpu-2",
        target("t1"),
        load="off",
        refused=refused,
        firing=[ALERT],
        alerts={"firing": 1, "pending": 0},
    )
    await publish(spy, "gpu-3", target("t1"), online=False)


async def test_a_look_shows_every_node_in_80_columns(broker, tmp_path, capsys, monkeypatch):
    """Test that nodes, the update, who has not taken it and why, alerts and acceptance are shown, and no line is longer
    than a terminal is wide.
    """
    monkeypatch.setenv("COLUMNS", "80")
    async with spying(broker) as spy:
        await fleet_of_three(spy)
        assert await status(config_at(broker, tmp_path)) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    flat = " ".join(shown.split())
    for words in (
        f"specd at localhost:{broker.port}: 3 nodes, 2 online",
        "demo t2, which gpu-1 took at 2025-11-29 15:26:40Z: on 1 of 2 online nodes",
        "gpu-1 serving t2 d1 3.2 full 3",
        "gpu-2 serving t1 ! d1 3.2 off 3",
        "gpu-3 offline t1 ! d1",
        "gpu-1 chat 0.61 code 0.74",
        "gpu-2 serves t1; at 2025-11-29 15:26:40Z it was refused: /models/t2 needs 9 GiB, and 4 GiB are free",
        "gpu-3 serves t1, and is not online",
        "gpu-2 SpecdAcceptanceCollapse since 2026-01-05T09:30:00.000Z: Acceptance of code is below its floor",
    ):
        assert words in flat, shown


async def test_programs_get_everything_that_is_told(broker, tmp_path, capsys):
    """Test that --json has each node's figures, and that looking leaves nothing at the broker."""
    async with spying(broker) as spy:
        await fleet_of_three(spy)
        before = len(spy.heard)
        assert await status(config_at(broker, tmp_path), "--json") == 0
        assert len(spy.heard) == before
    fleet = json.loads(capsys.readouterr().out)
    assert [(node["node"], node["taken"]) for node in fleet["nodes"]] == [
        ("gpu-1", True),
        ("gpu-2", False),
        ("gpu-3", False),
    ]
    assert fleet["nodes"][1]["firing"] == [ALERT]
    assert fleet["nodes"][0]["acceptance"] == {"chat": 0.61, "code": 0.74}


async def test_whoever_waits_is_told_when_the_last_node_has_the_update(broker, tmp_path, capsys):
    """Test that --wait ends once every node that is online serves the revision, exits 1 where the time is up before,
    and that a node away is not waited for.
    """
    config = config_at(broker, tmp_path)
    async with spying(broker) as spy:
        await fleet_of_three(spy)
        assert await status(config, "--wait", "0.1") == 1
        waiting = asyncio.ensure_future(status(config, "--wait", "60", "--revision", "t2"))
        await until(lambda: broker.log.count(" as specd-fleet-") >= 2)
        await publish(spy, "gpu-2", target("t2", "update"), doing="update to t2")
        await publish(spy, "gpu-2", target("t2", "update"))
        assert await waiting == 0
    assert "on 2 of 2 online nodes" in " ".join(capsys.readouterr().out.split())


async def test_a_fleet_of_hundreds_is_heard_whole(broker, tmp_path, capsys):
    """Test that what is retained of so many nodes that it could not wait here all at once is complete, in a daemon and
    in a look.
    """
    names = {f"n{number:03}" for number in range(MOST_NODES - 1)}
    async with spying(broker) as spy:
        await asyncio.gather(*(publish(spy, name, target("t1")) for name in names))

        def complete(fleet: dict[str, Any]) -> set[str]:
            nodes = fleet["nodes"]
            return {
                node["node"] for node in nodes if node["standing"] == "serving" and node["target_revision"]
            }

        async with bridged(broker) as rig:
            await until(lambda: complete(rig.bridge.fleet()) >= names)
            assert rig.bridge.status()["denied_topics"] == []
        assert await status(config_at(broker, tmp_path), "--json") == 0
    assert complete(json.loads(capsys.readouterr().out)) >= names


async def test_what_keeps_one_from_looking_is_a_sentence(broker, tmp_path, capsys):
    """Test that no broker in the config, none that answers, and nobody at it are told with what to do."""
    empty = tmp_path / "empty.toml"
    empty.write_text("")
    assert await status(str(empty)) == 2
    assert "set mqtt.url, or name the config of a node with -c" in capsys.readouterr().err
    assert await status(config_at(broker, tmp_path)) == 0
    assert "no node has said anything below specd/" in capsys.readouterr().out
    broker.close()
    assert await status(config_at(broker, tmp_path)) == 2
    assert f"the broker at localhost:{broker.port} is of no help" in capsys.readouterr().err


async def test_a_bridge_hears_the_others_and_itself(broker):
    """Test that a daemon's own connection has every node, that one that is updated is seen, and that nobody is heard
    where mqtt.fleet = false.
    """
    async with bridged(broker) as rig, spying(broker) as spy:
        await publish(spy, "n2", target("t2", "update"))

        def revisions() -> dict[str, str]:
            return {node["node"]: node["target_revision"] for node in rig.bridge.fleet()["nodes"]}

        await until(lambda: revisions() == {"n1": "t1", "n2": "t2"})
        await publish(spy, "n2", target("t3", "update"))
        await until(lambda: revisions()["n2"] == "t3")
        rig.configure(fleet=False)
        assert rig.bridge.fleet() is None


@needs_chromium
async def test_the_page_shows_the_fleet_and_lets_nobody_write_on_it(daemons, broker):
    """Test that nodes and their updates are on the page within seconds, that what a node says is text and no more, and
    that a page of a daemon without a broker has no fleet.
    """
    daemon = daemons.start(f'[mqtt]\nurl = "{broker.url}"\nnode = "own"\n').ready()
    evil = "<img src=x onerror=alert(1)>"
    async with spying(broker) as spy, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=PROGRAM, args=["--no-sandbox"])
        page = await browser.new_page()
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: faults.append(dialog.message))
        await page.goto(daemon.admin)
        await expect_async(page.locator("#fleet tbody tr")).to_have_count(1)
        await publish(spy, "n2", target("t1"), firing=[ALERT], acceptance={evil: 0.5})
        await publish(spy, "n3", target(evil, "update"))
        await spy.say("specd/n4/state", b"{", retain=True)
        rows = page.locator("#fleet tbody tr")
        await expect_async(rows).to_have_count(4, timeout=5000)
        await expect_async(rows.nth(0)).to_contain_text("n2")
        await expect_async(rows.nth(0)).to_contain_text("t1: not updated")
        await expect_async(rows.nth(0)).to_contain_text(f"{evil} 0.50")
        await expect_async(rows.nth(0)).to_contain_text("SpecdAcceptanceCollapse")
        await expect_async(rows.nth(2)).to_contain_text("n4: its state cannot be read")
        await expect_async(page.locator("#fleet-updates")).to_contain_text(
            f"demo {evil}, which n3 took last: on 1 of 2"
        )
        await publish(spy, "n2", target(evil, "update"))
        await expect_async(page.locator("#fleet-updates")).to_contain_text("on 2 of 2", timeout=5000)
        assert await page.locator("#fleet img").count() == 0
        ARTEFACTS.mkdir(parents=True, exist_ok=True)
        await page.locator("#fleet-part").screenshot(path=ARTEFACTS / "fleet.png")
        assert faults == []
        await browser.close()
