"""The house: who may import whom, and what `import tilefold` costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[1] / "src"
PACKAGE = SRC / "tilefold"

# What each room may import of tilefold beside itself. Anybody may import tilefold.errors, which imports nobody.
# Rooms that are not named here stand above: they may import anything but the command line.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "program": {"errors"},
    "machine": {"errors"},
    "folds": {"errors", "program"},
    "execute": {"errors", "program", "machine", "folds"},
}
IMPORT_SECONDS = 0.3


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(name: str, path: Path) -> Iterator[tuple[str, int]]:
    """Every module of tilefold that a file imports, anywhere in it, with the line. Imports for types do not count."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    tree = ast.parse(path.read_text())
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test).endswith("TYPE_CHECKING")
        for line in block.body
        for node in ast.walk(line)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                root = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*root, *([node.module] if node.module else [])])
            # `from tilefold import folds` imports a module; `from tilefold.folds import Sum` may import a name
            found = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for one in found:
            if one.split(".")[0] == "tilefold":
                yield one, node.lineno


def room(module: str) -> str:
    """tilefold.execute.triton.loops is in "execute"; tilefold itself is in "tilefold"."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def test_imports_point_one_way() -> None:
    wrong = []
    for name, path in modules():
        here = room(name)
        for module, line in imports(name, path):
            there = room(module)
            if there == here:
                continue
            allowed = there in MAY_IMPORT[here] if here in MAY_IMPORT else there != "cli"
            if not allowed:
                wrong.append(f"{path.relative_to(SRC)}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_jit_functions_are_imported_by_executors_alone() -> None:
    wrong = []
    for name, path in modules():
        if room(name) == "execute" or path.stem.endswith("_jit"):
            continue
        for module, line in imports(name, path):
            if any(part.endswith("_jit") for part in module.split(".")):
                wrong.append(f"{path.relative_to(SRC)}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_triton_is_imported_by_executors_and_jit_functions_alone() -> None:
    wrong = []
    for name, path in modules():
        if room(name) in ("execute", "cli") or path.stem.endswith("_jit"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            found = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            found += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            wrong += [f"{path.relative_to(SRC)}:{node.lineno}" for one in found if one.split(".")[0] == "triton"]
    assert not wrong, "\n".join(wrong)


def test_the_checks_see_a_wrong_import(tmp_path: Path) -> None:
    """The reader of imports reads them all: absolute, relative, inside functions; not those for types."""
    path = tmp_path / "sum.py"
    path.write_text(
        "import tilefold.execute.eager\n"
        "from . import program\n"
        "from ..ops.knn import knn\n"
        "from tilefold import cli\n"
        "if TYPE_CHECKING:\n    import tilefold.scan\n"
        "def f():\n    from tilefold.scores import Scores\n"
    )
    found = [module for module, _ in imports("tilefold.folds.sum", path)]
    assert found == [
        "tilefold.execute.eager",
        "tilefold.folds.program",
        "tilefold.ops.knn.knn",
        "tilefold.cli",
        "tilefold.scores.Scores",
    ]


def in_fresh_python(code: str) -> str:
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_import_needs_neither_triton_nor_the_command_line() -> None:
    code = """
import sys, torch
before = set(sys.modules)
import tilefold
new = set(sys.modules) - before
print(sorted(m for m in new if m.split(".")[0] in ("triton", "click", "rich") or m.startswith("tilefold.cli")))
"""
    assert in_fresh_python(code) == "[]"


def test_import_works_where_triton_is_absent() -> None:
    code = """
import sys
sys.modules["triton"] = None  # any import of it raises ImportError
import torch, tilefold as tf
x = torch.randn(3, 4)
print(tf.scores(x, x).logsumexp(-1).shape[0])
"""
    assert in_fresh_python(code) == "3"


@pytest.mark.slow
def test_import_is_cheap_beyond_torch() -> None:
    code = "import torch, time; t = time.perf_counter(); import tilefold; print(time.perf_counter() - t)"
    best = min(float(in_fresh_python(code)) for _ in range(3))
    assert best < IMPORT_SECONDS


def test_types_are_announced() -> None:
    assert (PACKAGE / "py.typed").is_file()
