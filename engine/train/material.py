"""What is on every machine: the standard library's source, and what the system's documentation has in /usr/share."""

import ast
import gettext
import gzip
import re
import sysconfig
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

_LONGEST_FUNCTION = 1_400
_PASSAGE = range(500, 1_700)
_DOCUMENTS = ("README*", "*.txt", "*.md", "*.gz", "FAQ*", "NEWS*", "copyright")


class Function(NamedTuple):
    """A documented function of the standard library."""

    head: str
    """Signature and docstring."""
    source: str


@dataclass(frozen=True, slots=True)
class Material:
    """Texts to make prompts of, in a fixed order."""

    functions: list[Function]
    passages: list[str]
    german: list[str]
    """Sentences of translated programs; empty where no translations are installed."""

    @classmethod
    def of_this_machine(cls) -> Self:
        """Takes some seconds: the standard library is parsed."""
        library = Path(sysconfig.get_paths()["stdlib"])
        share = Path("/usr/share")
        modules = [*sorted(library.glob("*.py")), *sorted(library.glob("[a-z]*/*.py"))]
        documents = [*sorted(share.glob("common-licenses/*")), *_documents(share / "doc")]
        return cls.of_sources(
            [_source(path) for path in modules if not {"site-packages", "test"}.intersection(path.parts)],
            [_text(path) for path in documents],
            sorted(_translations(share / "locale/de/LC_MESSAGES")),
        )

    @classmethod
    def of_sources(cls, modules: Sequence[str], documents: Sequence[str], german: Sequence[str]) -> Self:
        """modules: of Python. What cannot be parsed is left out."""
        parsed = [(source, tree) for source in modules if (tree := _parsed(source)) is not None]
        passages = [passage for _, tree in parsed for passage in _docstrings(tree)]
        return cls(
            functions=[function for source, tree in parsed for function in _functions(source, tree)],
            passages=[*passages, *(passage for text in documents for passage in _passages(text))],
            german=list(german),
        )


def _source(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return None


def _functions(source: str, tree: ast.Module) -> Iterator[Function]:
    lines = source.splitlines()
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or ast.get_docstring(node) is None or len(node.body) < 2:
            continue
        begin, body, end = node.lineno - 1, node.body[0].end_lineno or 0, node.end_lineno or 0
        whole = textwrap.dedent("\n".join(lines[begin:end]))
        if len(whole) <= _LONGEST_FUNCTION:
            yield Function(textwrap.dedent("\n".join(lines[begin:body])) + "\n", whole)


def _docstrings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield from _passages(ast.get_docstring(node) or "")


def _documents(folder: Path) -> Iterator[Path]:
    for package in sorted(folder.glob("*")):
        found = sorted({path for pattern in _DOCUMENTS for path in package.glob(pattern) if path.is_file()})
        yield from (path for path in found[:6] if path.stat().st_size < 1 << 20 and ".pdf" not in path.name)


def _text(path: Path) -> str:
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return raw.decode("utf-8")
    except (OSError, UnicodeDecodeError, EOFError):
        return ""


def _passages(text: str) -> Iterator[str]:
    """Paragraphs of prose, joined up to a page's length; at most eight of a text, so that no document dominates."""
    page, given = "", 0
    for paragraph in re.split(r"\n\s*\n", text):
        if not _is_prose(paragraph) or len(page) + len(paragraph) > _PASSAGE.stop:
            page = ""
            continue
        page = f"{page}\n\n{textwrap.dedent(paragraph).strip()}".strip()
        if len(page) >= _PASSAGE.start:
            yield page
            page, given = "", given + 1
            if given == 8:
                return


def _is_prose(paragraph: str) -> bool:
    letters = sum(c.isalpha() or c == " " for c in paragraph)
    return len(paragraph) > 60 and letters > 0.82 * len(paragraph)


def _translations(folder: Path) -> set[str]:
    found: set[str] = set()
    for path in sorted(folder.glob("*.mo")):
        try:
            with path.open("rb") as file:
                catalog: dict[object, str] = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]  # noqa: SLF001
        except (OSError, UnicodeDecodeError):
            continue
        found.update(
            text for text in catalog.values() if 50 < len(text) < 300 and "%" not in text and "\n" not in text
        )
    return found
