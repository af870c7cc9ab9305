"""The GPU leg. Without a GPU its tests are skipped; TILEFOLD_GPU_TESTS_ON_CPU=1 tries their bodies, small and eager."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

ON_CPU = os.environ.get("TILEFOLD_GPU_TESTS_ON_CPU") == "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available() and not ON_CPU:
                item.add_marker(pytest.mark.skip(reason="no GPU; TILEFOLD_GPU_TESTS_ON_CPU=1 runs the bodies eagerly"))


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def only_the_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the Triton loops must run, or nothing is tested. (The environment reaches autograd's threads.)"""
    if torch.cuda.is_available():
        monkeypatch.setenv("TILEFOLD_BACKEND", "triton")
        torch.cuda.empty_cache()
