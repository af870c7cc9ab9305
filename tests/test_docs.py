"""What README and docs say is run here: every ```python block, in order, one namespace a page.

A line `expression  # -> value` is checked: the value is evaluated too, and tensors and floats have a tolerance.
A line `statement  # raises ErrorClass` must raise that class. A block that is only shown and not run is marked ```py.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.registry import cases

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)")
SHOWN = re.compile(r"^```py\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CHECK = re.compile(r"#\s*(->|raises)\s*(.+?)\s*$")


def relative(page: Path) -> str:
    return str(page.relative_to(ROOT))


def checks_of(source: str) -> dict[int, tuple[str, str]]:
    """The checks in comments, by line."""
    found = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and (m := CHECK.match(token.string)):
            found[token.start[0]] = (m[1], m[2])
    return found


def assert_same(value: Any, expected: Any) -> None:
    """Equal; numbers within 1e-4, inside tuples too."""
    if isinstance(value, torch.Tensor):
        expected = torch.as_tensor(expected)
        assert value.shape == expected.shape, f"shape {tuple(value.shape)}, the page says {tuple(expected.shape)}"
        torch.testing.assert_close(value, expected.to(value.dtype), atol=1e-4, rtol=1e-4, equal_nan=True)
    elif isinstance(value, float):
        assert value == pytest.approx(expected, abs=1e-4, nan_ok=True)
    elif isinstance(value, tuple) and not isinstance(value, torch.Size):
        assert len(value) == len(expected)
        for one, other in zip(value, expected):
            assert_same(one, other)
    else:
        assert value == expected


def run_block(source: str, first_line: int, page: Path, names: dict[str, Any]) -> None:
    checks = checks_of(source)
    for statement in ast.parse(source).body:
        kind, text = checks.pop(statement.end_lineno or 0, ("", ""))
        where = f"{page.name}:{first_line + statement.lineno - 1}"
        ast.increment_lineno(statement, first_line - 1)
        if kind == "->":
            assert isinstance(statement, ast.Expr), f"{where}: only an expression has a value"
            value = eval(compile(ast.Expression(statement.value), str(page), "eval"), names)
            try:
                assert_same(value, eval(text, names))
            except AssertionError as error:
                raise AssertionError(f"{where}: {error}") from None
            continue
        code = compile(ast.Module([statement], []), str(page), "exec")
        if kind == "raises":
            with pytest.raises(eval(text, names)):
                exec(code, names)
                pytest.fail(f"{where}: raised nothing")
        else:
            exec(code, names)
    assert not checks, f"{page.name}: a check in line {first_line + min(checks) - 1} belongs to no statement"


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_python_blocks_run_and_give_what_they_say(page: Path) -> None:
    text = page.read_text()
    names: dict[str, Any] = {"__name__": f"docs_{page.stem}"}
    torch.manual_seed(0)
    for block in BLOCK.finditer(text):
        run_block(block[1], text.count("\n", 0, block.start(1)) + 1, page, names)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=relative)
def test_links_lead_somewhere(page: Path) -> None:
    missing = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_tables_name_a_benchmark_and_stand_below_its_command(page: Path) -> None:
    text = page.read_text()
    assert text.count("<!-- bench:") == text.count("<!-- /bench -->")
    for m in re.finditer(r"^(.*)\n\n<!-- bench:([a-z_]+)", text, re.MULTILINE):
        assert m[2] in cases()
        assert f"tilefold bench {m[2]}" in m[1]
    assert len(re.findall(r"^.*\n\n<!-- bench:", text, re.MULTILINE)) == text.count("<!-- bench:")


def test_levels_show_what_their_files_hold() -> None:
    folder = ROOT / "docs" / "levels"
    files = [path.read_text() for path in folder.glob("level*.py")]
    shown = SHOWN.findall((folder / "README.md").read_text())
    assert shown and all(any(part in text for text in files) for part in shown)


def test_a_wrong_value_and_a_missing_error_are_noticed() -> None:
    for source in ("1 + 1  # -> 3\n", "x = 1  # raises ValueError\n", "if True:\n    1  # -> 1\n    2\n"):
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            run_block(source, 1, ROOT / "README.md", {})
