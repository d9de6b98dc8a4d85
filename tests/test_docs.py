"""The documentation is true where a test can tell: links, and tables of names. `make check` runs this file."""

import re
from pathlib import Path

import pytest

from policies.base import Reason
from specd.alerts.finding import NAMES
from specd.alerts.manager import AlertManager
from specd.cli.registry import COMMANDS
from specd.config import document
from specd.config.alerts import AlertsSection
from specd.config.drift import DriftSection
from specd.config.schema import Config
from specd.config.telemetry import TelemetrySection
from specd.http.bodies import ChatBody, CompletionBody
from specd.mqtt.counts import Counts
from specd.observe.observing import Observing
from specd.router.instances import Instances
from specd.router.metrics import RouterMetrics
from specd.router.traffic import Traffic
from specd.target.attempts import Attempts
from specd.telemetry.drift import Drift
from specd.telemetry.prometheus import Metrics
from specd.telemetry.refusals import Refusals
from specd.telemetry.reports import Reports
from tests.daemon.test_alerts_manager import Told

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("**/*.md"))]

FENCE = re.compile(r"^(```|~~~).*?^\1[^\S\n]*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)|^\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)  # https:, mailto:


def anchors(markdown):
    """The fragments that a forge gives to the headings of a page."""
    seen = {}
    for heading in HEADING.findall(FENCE.sub("", markdown)):
        text = LINK.sub(lambda link: link[0][1 : link[0].index("]")], heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        count = seen[slug] = seen.get(slug, -1) + 1
        yield f"{slug}-{count}" if count else slug


def links(markdown):
    """Targets of links within the repository; what stands in code is no link."""
    text = CODE.sub("", FENCE.sub("", markdown))
    targets = (inline or reference for inline, reference in LINK.findall(text))
    return [target for target in targets if not ELSEWHERE.match(target)]


def dead_links(page):
    """Each as "target: reason"."""
    for target in links(page.read_text("utf-8")):
        path, _, fragment = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            yield f"{target}: no such file"
        elif fragment and file.suffix == ".md" and fragment not in anchors(file.read_text("utf-8")):
            yield f"{target}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    """Test that every relative link names a file that exists and, after #, a heading in it."""
    assert list(dead_links(page)) == []


def test_dead_links_are_found(tmp_path):
    """Test that the check can fail: a missing file, a missing heading, and neither in code nor outside."""
    page = tmp_path / "page.md"
    page.write_text(
        "# Why `k` is 0\n"
        "[good](page.md#why-k-is-0) [good](#why-k-is-0) [outside](https://example.org/none)\n"
        "[gone](gone.md) [nowhere](#nowhere) `[code](gone.md)`\n"
        "```\n[fenced](gone.md)\n# no heading\n```\n"
        "[again][1]\n\n[1]: also-gone.md\n"
    )
    assert list(dead_links(page)) == [
        "gone.md: no such file",
        "#nowhere: no such heading",
        "also-gone.md: no such file",
    ]


PACKAGES = ("policies", "engine", "specd")
NAME = r"[\w-]+(?:\.(?:py|md)\b|/(?=[\s,.;):]|$))"
MAPPED = re.compile(rf"(?P<begin> *)(?P<names>(?:{NAME} ?)*)(?P<told>.*)")
SOURCE = re.compile(r"`([\w./*-]+\.(?:py|cpp|h|md|yml))`")


def parts():
    """What the map of ARCHITECTURE.md names: (top-level directory, name, whether it stands directly in it)."""
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    top = ""
    for line in text.partition("```\n")[2].partition("```")[0].splitlines():
        mapped = MAPPED.match(line)
        if not mapped["begin"] and mapped["names"]:
            top = mapped["names"].strip()
            yield top, "", True
        else:
            yield from ((top, name, len(mapped["begin"]) == 2) for name in mapped["names"].split())
        yield from ((top, name, False) for name in re.findall(rf"\b{NAME}", mapped["told"]))


def test_the_map_names_what_there_is():
    """Test that each file and directory in the map of ARCHITECTURE.md is there, and each package is on the map."""
    named = set(parts())
    assert [
        f"{top}{name}"
        for top, name, here in sorted(named)
        if not ((ROOT / top / name).exists() if here else any((ROOT / top).rglob(name)))
    ] == []
    packages = {
        (f"{top}/", f"{init.parent.name}/") for top in PACKAGES for init in (ROOT / top).glob("*/__init__.py")
    }
    assert sorted(packages - {(top, name) for top, name, _ in named}) == []


def test_the_architecture_speaks_of_files_that_there_are():
    """Test that each source file that is named anywhere in ARCHITECTURE.md is there."""
    names = set(SOURCE.findall((ROOT / "ARCHITECTURE.md").read_text("utf-8")))

    def there(name):
        return any(ROOT.glob(name)) or any(
            any((ROOT / top).glob(f"**/{name}")) for top in (*PACKAGES, "docs")
        )

    assert [name for name in sorted(names) if not there(name)] == []


def rows(page, columns):
    """The first columns of every table row whose first cell is a name in backticks."""
    text = (ROOT / page).read_text("utf-8")
    found = re.findall(r"^\| `([^`]+)` \|(.*)\|$", text, re.MULTILINE)
    return {(name, *(cell.strip() for cell in rest.split("|")[: columns - 1])) for name, rest in found}


def test_the_router_page_names_its_metrics():
    """Test that docs/router.md has every metric of a router, and no other, each with its type."""
    config = Config()
    instances = Instances(lambda: config.router, None)
    metrics = RouterMetrics(instances, Traffic(instances, config), "0")
    exported = re.findall(r"^# TYPE (\S+) (\S+)$", metrics.render().decode(), re.MULTILINE)
    assert rows("docs/router.md", 2) == set(exported)


def test_the_configuration_page_is_current():
    """Test that docs/configuration.md is what `specd schema --markdown` prints: after a change, print it again."""
    assert (ROOT / "docs" / "configuration.md").read_text("utf-8") == document.page()


def test_the_metrics_page_names_what_there_is(tmp_path):
    """Test that docs/metrics.md has every metric of a fresh daemon, and no other, each with its type."""
    metrics = Metrics(version="0")
    metrics.set_target("t", "d", "none", ["ngram"])
    metrics.config_reloaded(ok=True, unix_time=0.0)
    metrics.include(Counts())
    metrics.include(Attempts())
    metrics.include(Refusals())
    metrics.include(Drift(DriftSection(), tmp_path))
    metrics.include(Reports(TelemetrySection()))
    metrics.include(Observing(Config(), tmp_path, AlertManager(AlertsSection(), metrics.alarm, Told())))
    exported = re.findall(r"^# TYPE (\S+) (\S+)$", metrics.render().decode(), re.MULTILINE)
    assert rows("docs/metrics.md", 2) == set(exported)


def test_every_alert_has_a_runbook():
    """Test that the link in an alert leads to a heading of docs/alerts.md, for each alert that there can be."""
    there = set(anchors((ROOT / "docs" / "alerts.md").read_text("utf-8")))
    assert [name for name in NAMES if name.lower() not in there] == []


def test_the_verification_page_names_tests_that_there_are():
    """Test that each test file and directory that docs/verification.md and the README name is there."""
    text = "".join((ROOT / page).read_text("utf-8") for page in ("docs/verification.md", "README.md"))
    files = set(re.findall(r"`(?:tests/(?:\w+/)*)?(test_\w+\.py)`", text))
    folders = set(re.findall(r"`tests/(\w+)`", text))
    assert len(files) > 10
    assert [name for name in sorted(files) if not any((ROOT / "tests").rglob(name))] == []
    assert [name for name in sorted(folders) if not (ROOT / "tests" / name).is_dir()] == []


def test_the_reasons_page_names_what_there_is():
    """Test that docs/policies.md explains every reason for a k, and no other."""
    assert {name for (name,) in rows("docs/policies.md", 1)} == {reason.value for reason in Reason}


def test_the_api_page_names_every_parameter():
    """Test that docs/api.md has each parameter of the two endpoints, and no other, under the right one."""
    chat, completions = set(ChatBody.model_fields), set(CompletionBody.model_fields)
    where = {
        name: "both" if name in chat & completions else "chat" if name in chat else "completions"
        for name in chat | completions
    }
    named = {row for row in rows("docs/api.md", 2) if row[1] in {"both", "chat", "completions"}}
    assert named == set(where.items())


def test_the_readme_knows_every_command():
    """Test that the README speaks of each command that there is."""
    text = (ROOT / "README.md").read_text("utf-8")
    assert [name for name in COMMANDS if f"`specd {name}" not in text] == []


def test_every_page_can_be_reached():
    """Test that each page under docs/ is linked from the README."""
    linked = links((ROOT / "README.md").read_text("utf-8"))
    assert [page.name for page in PAGES if page.parent != ROOT and f"docs/{page.name}" not in linked] == []
