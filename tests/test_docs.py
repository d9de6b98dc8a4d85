"""Links in the documentation lead somewhere. `make check` runs this file."""

import re
from pathlib import Path

import pytest

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
