"""The receipt: a kernel that changed since a GPU last ran it is seen, and a comment is not a change."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import receipt  # noqa: E402

KERNEL = '''
import triton
import triton.language as tl

WIDTH = tl.constexpr(128)

@triton.jit
def step(m, s):
    """Maximum."""
    return tl.maximum(m, tl.max(s, 1))  # [BN]

def launch(x):
    return step[(1,)](x)
'''


@pytest.fixture
def house(tmp_path: Path) -> Path:
    path = tmp_path / "src" / "tilefold" / "folds" / "max_jit.py"
    path.parent.mkdir(parents=True)
    path.write_text(KERNEL)
    (tmp_path / "gpu").mkdir()
    return tmp_path


def sign(root: Path, **more: object) -> None:
    (root / receipt.RECEIPT).write_text(json.dumps({"functions": receipt.functions(root), **more}))


def edit(root: Path, old: str, new: str) -> None:
    path = root / "src" / "tilefold" / "folds" / "max_jit.py"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_receipt_of_this_tree_is_current() -> None:
    assert receipt.problems() == []


def test_hash_is_the_same_on_every_python() -> None:
    tree = ast.parse(
        "def f(x: int = 1, *, y) -> None:\n    'doc'\n    a, b = x @ y, f'{x!r:>{y}}'\n    del a[1:2]\n"
    ).body[0]
    assert receipt.digest(tree) == "c7547e693c8fb2eb"


def test_finds_functions_constants_and_nothing_of_the_host(house: Path) -> None:
    assert set(receipt.functions(house)) == {
        "src/tilefold/folds/max_jit.py::WIDTH",
        "src/tilefold/folds/max_jit.py::step",
    }


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  # [BN]", "  # a row each"),
        ('    """Maximum."""\n', ""),
        ("tl.maximum(m, tl.max(s, 1))", "tl.maximum(\n        m,\n        tl.max(s, 1),\n    )"),
        ("step[(1,)](x)", "step[(2,)](x)"),
    ],
)
def test_comment_docstring_layout_and_host_code_are_no_change(house: Path, old: str, new: str) -> None:
    sign(house)
    edit(house, old, new)
    assert receipt.problems(house) == []


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("tl.max(s, 1)", "tl.min(s, 1)", "step"),
        ("def step(m, s)", "def step(m, s, n: tl.constexpr)", "step"),
        ("@triton.jit", "@triton.jit(do_not_specialize=['m'])", "step"),
        ("constexpr(128)", "constexpr(64)", "WIDTH"),
        ("def step", "def stride", "stride"),
    ],
)
def test_changed_kernel_or_constant_is_a_problem_until_pending_names_it(
    house: Path, old: str, new: str, name: str
) -> None:
    sign(house)
    edit(house, old, new)
    (problem,) = receipt.problems(house)
    assert f"::{name} is " in problem
    (house / receipt.PENDING).write_text(f"# Pending\n\n- src/tilefold/folds/max_jit.py::{name}: no GPU at hand\n")
    assert receipt.problems(house) == []


def test_without_a_receipt_everything_is_new(house: Path) -> None:
    assert set(receipt.changed(house).values()) == {"new"}


def test_template_that_spells_a_kernel_is_hashed_and_a_docstring_about_one_is_not(house: Path) -> None:
    path = house / "src" / "tilefold" / "glue.py"
    path.write_text(
        "HEAD = '@triton.jit\\ndef score(s):'\n"
        "def emit(body):\n    '''Text.'''\n    return f'@triton.jit\\ndef f(s): return {body}'\n"
        "def other():\n    '''Makes an @triton.jit function.'''\n"
    )
    names = {n.split("::")[1] for n in receipt.functions(house) if n.startswith("src/tilefold/glue.py")}
    assert names == {"HEAD", "emit"}


def test_jit_functions_inside_functions_and_classes_are_found(house: Path) -> None:
    path = house / "src" / "tilefold" / "nested.py"
    path.write_text(
        "def make():\n    if True:\n        @gluon.jit\n        def inner(x): return x\n    return inner\n"
        "class A:\n    @jit(debug=True)\n    def method(x): return x\n"
    )
    names = {n.split("::")[1] for n in receipt.functions(house) if n.startswith("src/tilefold/nested.py")}
    assert names == {"make.inner", "A.method"}


def test_excuse_for_what_needs_none_is_a_problem(house: Path) -> None:
    sign(house)
    (house / receipt.PENDING).write_text("- src/tilefold/folds/max_jit.py::step: forgotten\n")
    (problem,) = receipt.problems(house)
    assert "remove it" in problem


def test_excuse_without_a_reason_is_an_error(house: Path) -> None:
    (house / receipt.PENDING).write_text("- src/tilefold/folds/max_jit.py::step\n")
    with pytest.raises(ValueError, match="pending.md:1"):
        receipt.pending(house)


def test_write_pending_keeps_reasons_and_drops_what_is_current(house: Path) -> None:
    sign(house)
    edit(house, "tl.max(s, 1)", "tl.min(s, 1)")
    (house / receipt.PENDING).write_text("# Head\n\n- src/tilefold/folds/max_jit.py::WIDTH: old\n")
    receipt.write_pending("new loop", house)
    assert (house / receipt.PENDING).read_text() == "# Head\n\n- src/tilefold/folds/max_jit.py::step: new loop\n"
    receipt.write_pending(None, house)
    assert receipt.pending(house) == {"src/tilefold/folds/max_jit.py::step": "new loop"}


def test_receipt_of_a_red_run_is_a_problem(house: Path) -> None:
    sign(house, tests={"passed": 3, "failed": 1, "errors": 0, "skipped": 0})
    (problem,) = receipt.problems(house)
    assert "red run" in problem


def test_junit_counts_become_test_counts(tmp_path: Path) -> None:
    import gpu_check

    path = tmp_path / "tests.xml"
    path.write_text('<testsuites><testsuite tests="9" failures="1" errors="2" skipped="3"/></testsuites>')
    assert gpu_check.counts(path) == {"passed": 3, "failed": 1, "errors": 2, "skipped": 3}
    path.write_text("<testsuites><testsuite")  # killed while writing
    assert gpu_check.counts(path)["errors"] == 1


def test_gpu_check_explains_itself_without_a_gpu() -> None:
    shown = subprocess.run(
        [sys.executable, ROOT / "scripts" / "gpu_check.py", "--help"], capture_output=True, text=True
    )
    assert shown.returncode == 0 and "receipt" in shown.stdout
