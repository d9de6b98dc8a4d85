"""A real Chromium, and pages in it that may neither complain nor ask anybody but the daemon for anything."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

from tests.daemon.daemon_process import DEADLINE, ROOT

PROGRAM = shutil.which("chromium")
ARTEFACTS = ROOT / "build" / "dashboard"
"""Screenshots, for people to look at."""

needs_chromium = pytest.mark.skipif(
    PROGRAM is None, reason="needs chromium, which is in Debian's package of that name"
)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Ready to open pages."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(browser: Browser, url: str, *excused: str, **options: Any) -> Iterator[Page]:
    """A page that has to end without an error of its own, and without a request to another host. excused: what its
    console may say nevertheless.
    """
    context = browser.new_context(**options)
    context.set_default_timeout(DEADLINE * 1000)
    page, errors, asked = context.new_page(), [], set[str]()

    def said(message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"} and not any(words in message.text for words in excused):
            errors.append(f"{message.text} at {message.location}")

    def requested(request: Request) -> None:
        asked.add(request.url)

    page.on("console", said)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", requested)
    page.goto(url)
    yield page
    context.close()
    assert errors == []
    assert [one for one in asked if not one.startswith(f"{url}/")] == []


def screenshot(page: Page, name: str) -> Path:
    """The whole page, as it looks now."""
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    file = ARTEFACTS / f"{name}.png"
    page.screenshot(path=file, full_page=True)
    return file
