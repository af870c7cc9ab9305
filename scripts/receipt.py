"""What a GPU has to see again: a hash of every kernel's syntax tree, and the receipt that a GPU run signs for them.

    python scripts/receipt.py                        what changed since gpu/receipt.json
    python scripts/receipt.py --pending "the reason"  write those into gpu/pending.md
    python scripts/receipt.py --accept FILE          take a receipt that scripts/gpu_check.py wrote elsewhere

Hashed, as "path::name": functions under a jit decorator; module constants made by tl.constexpr, which kernels read; and
templates, which are functions and constants whose strings spell a jit decorator. Comments, docstrings, layout and the
Python that parses them make no difference.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECEIPT, PENDING = Path("gpu/receipt.json"), Path("gpu/pending.md")
_DECORATOR = re.compile(r"@(\w+\.)*jit\b")
_ENTRY = re.compile(r"^- (?P<name>\S+::\S+): (?P<reason>\S.*)$")
_CODE = (ast.FunctionDef, ast.AsyncFunctionDef)


def digest(node: ast.AST) -> str:
    """A hash of what the code says: no positions, docstrings, comments or empty fields (those differ by Python)."""
    return hashlib.sha256(_spell(node).encode()).hexdigest()[:16]


def _spell(node: Any) -> str:
    if isinstance(node, list):
        return "[" + ",".join(map(_spell, node)) + "]"
    if not isinstance(node, ast.AST):
        return f"{type(node).__name__}:{node!r}"
    fields = []
    for name, value in ast.iter_fields(node):
        if name == "body" and isinstance(node, _CODE + (ast.ClassDef,)):
            value = [s for i, s in enumerate(value) if not (i == 0 and _is_docstring(s))]
        if isinstance(node, ast.JoinedStr):  # Python 3.12 adds an empty piece
            value = [v for v in value if not (isinstance(v, ast.Constant) and v.value == "")]
        if value is None or value == [] or name in ("type_comment", "kind", "ctx"):
            continue
        fields.append(f"{name}={_spell(value)}")
    return f"{type(node).__name__}({','.join(fields)})"


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def functions(root: Path = ROOT) -> dict[str, str]:
    """Every kernel function, kernel constant and template under src/tilefold, with its hash."""
    found = {}
    for path in sorted((root / "src" / "tilefold").rglob("*.py")):
        for name, node in _hashed(ast.parse(path.read_text())):
            found[f"{path.relative_to(root).as_posix()}::{name}"] = digest(node)
    return found


def _hashed(module: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    for statement in module.body:
        if isinstance(statement, (*_CODE, ast.ClassDef)):
            kernels = list(_kernels(statement, ""))
            yield from kernels
            if isinstance(statement, _CODE) and not kernels and _spells_jit(statement):
                yield statement.name, statement
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            if _spells_jit(statement) or "constexpr" in ast.dump(statement):
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                yield ",".join(ast.unparse(t) for t in targets).replace(" ", ""), statement


def _kernels(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST]]:
    """Functions under a jit decorator, wherever they are defined."""
    if not isinstance(node, (*_CODE, ast.ClassDef)):
        for child in ast.iter_child_nodes(node):
            yield from _kernels(child, prefix)
        return
    name = prefix + node.name
    if isinstance(node, _CODE) and any(_is_jit(d) for d in node.decorator_list):
        yield name, node
        return
    for child in node.body:
        yield from _kernels(child, name + ".")


def _is_jit(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name in ("jit", "constexpr_function")


def _spells_jit(node: ast.AST) -> bool:
    """Whether a string in the code, not in a docstring, holds a jit decorator."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and _DECORATOR.search(node.value) is not None
    return any(_spells_jit(n) for n in ast.iter_child_nodes(node) if not (isinstance(n, ast.stmt) and _is_docstring(n)))


def pending(root: Path = ROOT) -> dict[str, str]:
    """The names that gpu/pending.md excuses, and why. A list item of another form is an error."""
    path, found = root / PENDING, {}
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else [], 1):
        if not line.startswith("- "):
            continue
        entry = _ENTRY.match(line)
        if entry is None:
            raise ValueError(f"{PENDING}:{number}: {line!r}; an entry is '- path::function: reason'")
        found[entry["name"]] = entry["reason"]
    return found


def receipt(root: Path = ROOT) -> dict[str, Any]:
    path = root / RECEIPT
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"functions": {}}
    return found


def changed(root: Path = ROOT) -> dict[str, str]:
    """Names whose code no GPU has seen, each "new" or "changed"."""
    signed: Mapping[str, str] = receipt(root)["functions"]
    now = functions(root)
    return {n: "changed" if n in signed else "new" for n, code in now.items() if signed.get(n) != code}


def problems(root: Path = ROOT) -> list[str]:
    """What keeps the receipt from being current; empty when all is well."""
    stale, excused, signed = changed(root), pending(root), receipt(root)
    found = [
        f"{name} is {how} since {RECEIPT}: run `make gpu-check` on a GPU, or name it and the reason in {PENDING}"
        for name, how in stale.items()
        if name not in excused
    ]
    found += [f"{PENDING} names {name}, which needs no excuse: remove it" for name in excused if name not in stale]
    tests = signed.get("tests", {})
    if tests.get("failed", 0) or tests.get("errors", 0):
        found.append(f"{RECEIPT} was written by a red run: {tests}")
    return found


def write_pending(reason: str | None, root: Path = ROOT) -> None:
    """Lists what is stale, with the reasons that were there; what is no longer stale is dropped."""
    stale, reasons, path = changed(root), pending(root), root / PENDING
    text = path.read_text() if path.exists() else "# Kernels that no GPU has run yet\n"
    kept = "\n".join(line for line in text.splitlines() if not line.startswith("- ")).rstrip("\n")
    named = [n for n in stale if n in reasons or reason]
    entries = "\n".join(f"- {name}: {reasons.get(name, reason)}" for name in named)
    path.parent.mkdir(exist_ok=True)
    path.write_text(kept + "\n" + (f"\n{entries}\n" if entries else ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pending", metavar="REASON", help=f"write what is stale into {PENDING} with this reason")
    parser.add_argument("--accept", metavar="FILE", type=Path, help=f"copy FILE to {RECEIPT} and prune {PENDING}")
    arguments = parser.parse_args()
    if arguments.accept:
        (ROOT / RECEIPT).write_text(arguments.accept.read_text())
        write_pending(None)
    if arguments.pending:
        write_pending(arguments.pending)
    for problem in problems():
        print(problem)
    sys.exit(bool(problems()))


if __name__ == "__main__":
    main()
