"""The kernels of docs/levels, on ragged shapes."""

import pytest
import torch

from benchmarks.cases.levels import level


@pytest.mark.parametrize("number", [3, 4])
@pytest.mark.parametrize(("n", "k", "d"), [(70, 150, 32), (1, 1, 8), (128, 256, 16), (130, 257, 24)])
def test_kernel_of_a_level_equals_float64(number, n, k, d):
    x, y = torch.randn(n, d, dtype=torch.float16), torch.randn(k, d, dtype=torch.float16)
    out = level(number).logsumexp(x, y)
    assert out.dtype == torch.float32
    ref = (x.double() @ y.double().T).logsumexp(-1)
    torch.testing.assert_close(out.double(), ref, rtol=1e-5, atol=1e-5)
