"""Every script in examples/ runs, checks itself against plain PyTorch, and says what it did."""

from __future__ import annotations

import runpy
import warnings
from pathlib import Path

import pytest

import tilefold as tf

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "examples").glob("*.py"))


def test_every_operator_has_an_example() -> None:
    names = {path.stem for path in EXAMPLES}
    assert {"attention", "linear_cross_entropy", "sample", "knn", "contrastive", "recipes", "scores_and_folds"} <= names
    texts = "".join(path.read_text() for path in EXAMPLES)
    for name in (
        "attention",
        "linear_cross_entropy",
        "sample",
        "knn",
        "contrastive_loss",
        "scores",
        "fold",
        "outer",
        "stream",
    ):
        assert hasattr(tf, name) and f"tf.{name}(" in texts


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_example(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.strip()
