"""The dashboard in a real Chromium, against a real daemon. Screenshots stay in build/dashboard."""

import math
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.daemon.browser import chromium, needs_chromium, opened, screenshot
from tests.daemon.conftest import Daemons
from tests.daemon.daemon_process import DEADLINE, DaemonProcess, wait_until

pytestmark = needs_chromium

CONTRASTS = Path(__file__).with_name("contrasts.js").read_text()
FOCUSED = Path(__file__).with_name("focused.js").read_text()
READABLE = 4.5
"""The least contrast with which most people can read (WCAG 2, AA)."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def daemon(tmp_path_factory) -> Iterator[DaemonProcess]:
    daemons = Daemons(tmp_path_factory.mktemp("served"))
    receiver = '[[alerts.receivers]]\nname = "pager"\nurl = "http://127.0.0.1:9/"\nprivate_addresses = true\n'
    daemon = daemons.start(f"[policy]\nk_max = 4\n{receiver}").ready()
    work(daemon)
    yield daemon
    daemons.close()


def work(daemon: DaemonProcess) -> None:
    """Traffic of two classes, with drafts and without."""
    for number in range(24):
        specd = {"class": "code" if number % 3 else "chat", "k": (0, 2, 4)[number % 3]}
        answer = daemon.post("/v1/completions", {"prompt": "abc", "max_tokens": 24, "specd": specd})
        assert answer.status_code == 200


def texts(page: Page, *ids: str) -> dict[str, str]:
    """What elements of the page say."""
    return {name: page.locator(f"#{name}").inner_text() for name in ids}


def table(page: Page, name: str) -> list[list[str]]:
    """The cells of a table's body."""
    script = "(rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent))"
    found: list[list[str]] = page.locator(f"#{name} tbody tr").evaluate_all(script)
    return found


def rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def percent(part: int, whole: int) -> str:
    """A half goes up, as in JavaScript."""
    return f"{math.floor(100 * part / whole + 0.5)}%"


def expected(status: dict[str, Any]) -> dict[str, Any]:
    """What the page should say of a status."""
    load, model, drafts = status["load"], status["model"], status["drafts"]
    blocks = sum(status["kv"].values())
    rounds = [(int(k), times) for counts in drafts["k"].values() for k, times in counts.items()]
    mean = sum(k * times for k, times in rounds) / sum(times for _, times in rounds)
    return {
        "state": "Serving",
        "model": model["name"],
        "target-revision": model["target_revision"],
        "draft-revision": model["draft_revision"],
        "version": status["version"],
        "k-now": f"{mean:.1f}",
        "tokens-now": f"{drafts['tokens_per_second']:.1f}",
        "load-now": f"{load['running']} running",
        "load-note": f"{load['waiting']} waiting, drafting {load['state']}",
        "load-admitted": str(load["admitted"]),
        "load-kv": f"{status['kv']['used']} of {blocks}, {percent(status['kv']['used'], blocks)}",
        "config-hash": status["config"]["hash"],
        "goodput": [[arm["running"], rate(arm["drafting"]), rate(arm["plain"])] for arm in drafts["goodput"]],
        "lengths": {
            name: {k: percent(times, sum(counts.values())) for k, times in counts.items()}
            for name, counts in drafts["k_by_class"].items()
        },
    }


def seen(page: Page, like: dict[str, Any]) -> dict[str, Any]:
    """What the page does say of the same things."""
    head = page.locator("#lengths thead th").all_inner_texts()[1:]
    lengths = {
        name: {k.removeprefix("k = "): share for k, share in zip(head, shares, strict=True) if share}
        for name, *shares in table(page, "lengths")
    }
    words = texts(page, *(like.keys() - {"goodput", "lengths"}))
    return {**words, "goodput": [row[:3] for row in table(page, "goodput")], "lengths": lengths}


def reload(daemon: DaemonProcess, config: str) -> int:
    daemon.config_file.write_text(config)
    return httpx2.post(daemon.admin + "/admin/v1/reload").status_code


def test_the_numbers_are_those_of_the_status(browser, daemon):
    """Test that what the page says equals what `/admin/v1/status` says, table cells included."""
    with opened(browser, daemon.admin) as page:
        page.locator("main").wait_for()
        wait_until(lambda: seen(page, like := expected(daemon.status())) == like, "the page to be current")
        rows = {(row[0], row[1]): [*row[2:4], row[6]] for row in table(page, "acceptance")}
        assert rows == {
            (one["traffic_class"], one["proposer"]): [
                *("-" if one[name] is None else f"{one[name]:.2f}" for name in ("now", "baseline")),
                str(one["requests"]),
            ]
            for one in daemon.status()["drift"]
        }
        told = daemon.get("/admin/v1/decisions?limit=24").json()["decisions"]
        shown = [row[:3] for row in table(page, "decisions")]
        assert shown == [[one["request"], one["class"], str(one["k"])] for one in told]


def test_an_alert_appears_and_goes(browser, daemon):
    """Test that an alert is shown and said while it fires, that its end is, and that a silence is shown as well."""
    good = daemon.config_file.read_text()
    with opened(browser, daemon.admin) as page:
        expect(page.locator("#no-alerts")).to_be_visible()
        assert reload(daemon, f"{good}\n[policy.nonsense]\n") == 422
        alert = page.locator("#alerts > li")
        expect(alert).to_contain_text("SpecdConfigReloadFailed")
        expect(page.locator("#alerts-now")).to_have_text("1 firing")
        expect(page.locator("#announcement")).to_contain_text(
            "Alert firing: A reload of the config was refused"
        )
        expect(page.locator("#config-reload")).to_contain_text("policy.nonsense")
        expect(page).to_have_title("1 firing - tiny - specd")
        alert.locator("summary").click()
        silence = {"matchers": ["alertname=SpecdConfigReloadFailed"], "for": "1h", "comment": "known"}
        made = httpx2.post(daemon.admin + "/admin/v1/silences", json=silence)
        assert made.status_code == 201
        expect(page.locator("#silences > li")).to_contain_text("known")
        expect(alert).to_contain_text("silenced until")
        expect(page.locator("#alerts-note")).to_contain_text("1 silence")
        assert alert.locator("details").get_attribute("open") is not None
        httpx2.delete(f"{daemon.admin}/admin/v1/silences?id={made.json()['id']}")
        expect(page.locator("#no-silences")).to_be_visible()
        assert reload(daemon, good) == 200
        expect(alert).to_have_count(0)
        expect(page.locator("#alerts-now")).to_have_text("none")
        expect(page.locator("#announcement")).to_contain_text("Alert resolved")
        expect(page.locator("#ended-alerts > summary")).to_have_text("Ended lately: 1")


def test_an_engine_that_died_is_shown(browser, daemons):
    """Test that its end appears while the page is open, in the words of its report and with the report's id."""
    daemon = daemons.start().ready()
    with opened(browser, daemon.admin) as page:
        expect(page.locator("#no-crashes")).to_be_visible()
        assert daemon.post("/v1/completions", {"prompt": "<crash>"}).status_code == 503
        row = page.locator("#crashes tbody tr")
        expect(row).to_contain_text("signal 9")
        (crash,) = daemon.get("/admin/v1/crashes").json()["crashes"]
        assert table(page, "crashes")[0][1:] == [crash["reason"], crash["text"], crash["id"]]
        expect(page.locator("#restarts")).to_contain_text("signal 9")
        expect(page.locator("#state")).to_have_text("Serving")


def test_it_is_walked_by_the_keyboard(browser, daemon):
    """Test that the focus goes through all that scrolls or opens, is seen everywhere, and is lost nowhere when the
    page changes beneath it.
    """
    with opened(browser, daemon.admin) as page:
        page.locator("main").wait_for()
        page.keyboard.press("Tab")
        assert page.evaluate(FOCUSED)["name"] == "Skip to the figures"
        page.keyboard.press("Enter")
        assert page.evaluate(FOCUSED)["tag"] == "MAIN"
        walked = []
        while (page.keyboard.press("Tab"), one := page.evaluate(FOCUSED))[1]["tag"] != "BODY":
            walked.append(one["name"])
            assert one["outlined"], one
            if one["name"] == "Last decisions":
                work(daemon)
                newest = daemon.get("/admin/v1/decisions?limit=1").json()["decisions"][0]["request"]
                expect(page.locator("#decisions tbody th").first).to_have_text(newest)
                assert page.evaluate(FOCUSED)["name"] == "Last decisions"
        parts = [
            "Acceptance against baseline",
            "Throughput with and without drafts",
            "Last decisions",
            "Who is told",
        ]
        assert [name for name in walked if name in parts] == parts


def test_a_screen_reader_finds_its_way(browser, daemon):
    """Test that landmarks, tables and regions have names, charts have words, and what changes is said politely."""
    with opened(browser, daemon.admin) as page:
        page.locator("main").wait_for()
        for role, name in (
            ("banner", None),
            ("main", None),
            ("region", "At a glance"),
            ("region", "Alerts"),
            ("region", "Load"),
            ("columnheader", "Baseline"),
            ("rowheader", "pager"),
        ):
            found = page.get_by_role(role) if name is None else page.get_by_role(role, name=name, exact=True)
            assert found.count() >= 1, (role, name)
        assert page.locator("th:not([scope])").count() == 0
        assert page.locator("svg:not([aria-hidden=true])").count() == 0
        for chart in ("throughput-chart", "load-chart"):
            expect(page.locator(f"#{chart} figcaption")).to_contain_text("highest")
        assert page.locator("#announcement").get_attribute("aria-live") == "polite"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("light", {"color_scheme": "light"}),
        ("dark", {"color_scheme": "dark"}),
        ("narrow", {"viewport": {"width": 360, "height": 780}}),
        ("contrast", {"contrast": "more", "color_scheme": "dark"}),
    ],
)
def test_it_can_be_read(browser, daemon, name, options):
    """Test that every word stands out from its ground, with an alert and without, and nothing hangs over the edge."""
    good = daemon.config_file.read_text()
    with opened(browser, daemon.admin, **{"viewport": {"width": 1280, "height": 900}, **options}) as page:
        page.locator("main").wait_for()
        reload(daemon, f"{good}\n[policy.nonsense]\n")
        expect(page.locator("#alerts > li")).to_have_count(1)
        screenshot(page, name)
        faint = [(words, round(ratio, 2)) for words, ratio in page.evaluate(CONTRASTS) if ratio < READABLE]
        assert faint == []
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    reload(daemon, good)


def test_the_token_is_asked_for(browser, daemons, tmp_path):
    """Test that the page asks for the token, says when it is wrong, works with the right one, keeps it for this tab
    alone, and never puts it into an address.
    """
    token = tmp_path / "token"
    token.write_text("letmein\n")
    daemon = daemons.start(admin=f'token_file = "{token}"').ready()
    with opened(browser, daemon.admin, "401 (Unauthorized)") as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        field = page.get_by_label("Admin token")
        expect(field).to_be_focused()
        field.fill("wrong")
        field.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("does not take this token")
        field.fill("letmein")
        field.press("Enter")
        expect(page.locator("#state")).to_have_text("Serving")
        page.reload()
        expect(page.locator("#state")).to_have_text("Serving")
        assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
        assert not [url for url in asked if "letmein" in url]


def test_a_daemon_that_goes_is_told_from_one_that_is_back(browser, daemons):
    """Test that the page says when it is cut off, and goes on by itself with a daemon that is started anew."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f'listen = "127.0.0.1:{free.getsockname()[1]}"'
    daemon = daemons.start(admin=listen).ready()
    with opened(browser, daemon.admin, "net::ERR") as page:
        expect(page.locator("#state")).to_have_text("Serving")
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0
        notice = page.locator("#notice")
        expect(notice).to_contain_text("Not connected")
        again = daemons.start("[policy]\nk_max = 2\n", admin=listen).ready()
        expect(notice).to_be_hidden()
        expect(page.locator("#config-hash")).to_have_text(again.status()["config"]["hash"])


def test_an_update_is_marked_in_the_curves(browser, daemon):
    """Test that an update of the target stands in the curves of acceptance and of the hour, and in the words beside
    them, once there is a point of the hour to draw.
    """
    patience = 1000 * DEADLINE
    served = daemon.get("/admin/v1/target").json()["current"]["path"]
    with opened(browser, daemon.admin) as page:
        page.locator("main").wait_for()
        expect(page.locator("path.mark.target_update")).to_have_count(0)
        update = {"path": served, "revision": "next"}
        assert (
            httpx2.post(f"{daemon.admin}/admin/v1/target", json=update, timeout=DEADLINE).status_code == 200
        )
        work(daemon)
        mark = page.locator("#acceptance path.mark.target_update").first
        expect(mark).to_be_attached(timeout=patience)
        expect(mark).to_contain_text("target update at")
        expect(page.locator("#throughput-chart path.mark.target_update")).to_have_count(1, timeout=patience)
        expect(page.locator("#throughput-chart figcaption")).to_contain_text("target update at")
        screenshot(page, "updated")
