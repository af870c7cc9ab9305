"""For every test: memory that nobody wrote is NaN, random numbers start from a fixed seed, threads are bounded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

try:
    import hypothesis
except ImportError:  # the rest of the tests needs no hypothesis
    pass
else:
    hypothesis.settings.register_profile(
        "tilefold",
        deadline=None,
        derandomize=True,
        max_examples=int(os.environ.get("TILEFOLD_EXAMPLES", "25")),
        suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
    )
    hypothesis.settings.load_profile("tilefold")

torch.set_num_threads(min(2, torch.get_num_threads()))

_EMPTY = ((torch, "empty"), (torch, "empty_like"), (torch, "empty_strided"), (torch.Tensor, "new_empty"))


def _poisoned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def call(*args: Any, **kwargs: Any) -> torch.Tensor:
        made = make(*args, **kwargs)
        if torch.compiler.is_compiling() or made.device.type == "meta" or made.layout != torch.strided:
            return made
        with torch.no_grad():
            if made.is_floating_point() or made.is_complex():
                return made.fill_(float("nan"))
            return made.fill_(True if made.dtype == torch.bool else torch.iinfo(made.dtype).max)

    return call


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fills what torch.empty and its kin return with NaN (integers: their largest value)."""
    for home, name in _EMPTY:
        monkeypatch.setattr(home, name, _poisoned(getattr(home, name)))


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def unchanged_settings() -> Iterator[None]:
    """A test that leaves torch's or tilefold's settings changed would be a test of the next one."""
    before = (torch.get_default_dtype(), torch.is_grad_enabled())
    yield
    assert (torch.get_default_dtype(), torch.is_grad_enabled()) == before
