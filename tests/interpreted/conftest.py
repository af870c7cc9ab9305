"""The interpreted leg: needs triton and TRITON_INTERPRET=1, set before triton's functions are made, so it runs in a process of its own."""

import importlib.util
import os

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1" or importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch):
    """torch.empty gives NaN and an absurd integer, so that what a kernel forgets to write is seen."""
    empty = torch.empty

    def poisoned(*args, **kwargs):
        t = empty(*args, **kwargs)
        return t.fill_(float("nan")) if t.is_floating_point() else t.fill_(77)

    monkeypatch.setattr(torch, "empty", poisoned)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
