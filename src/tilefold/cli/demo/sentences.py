"""Real text that is on every machine: the sentences of the standard library's docstrings."""

from __future__ import annotations

import ast
import os
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

PROSE = re.compile(r"[A-Z][^{}<>|=\\]*[.!?]")  # starts and ends as a sentence does, and holds no code or table
END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
PARAGRAPH = re.compile(r"\n\s*\n")
WORDS = range(4, 25)
TESTS = {"test", "tests", "idle_test"}  # read last: not every distribution ships them
NOT_STDLIB = {"site-packages", "dist-packages"}


def sentences(count: int, root: Path | None = None) -> list[str]:
    """`count` distinct sentences, or all there are. Files are read in sorted order: one Python version, one list."""
    found: dict[str, None] = {}
    for docstring in _docstrings(root or Path(sysconfig.get_path("stdlib"))):
        found.update(dict.fromkeys(_split(docstring)))
        if len(found) >= count:
            break
    return list(found)[:count]


def _split(docstring: str) -> Iterator[str]:
    for paragraph in PARAGRAPH.split(docstring):
        for sentence in END.split(" ".join(paragraph.split())):
            if len(sentence.split()) in WORDS and PROSE.fullmatch(sentence):
                yield sentence


def _files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in NOT_STDLIB]
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def _docstrings(root: Path) -> Iterator[str]:
    for path in sorted(_files(root), key=lambda path: (not TESTS.isdisjoint(path.parts), path.parts)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the library's own invalid escapes
                tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError):  # files that are broken on purpose, for tests
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                docstring = ast.get_docstring(node)
                if docstring:
                    yield docstring
