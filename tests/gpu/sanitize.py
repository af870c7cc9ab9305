"""The main loops at ragged sizes, forward and backward, for compute-sanitizer's memcheck.

compute-sanitizer --tool memcheck --error-exitcode 99 python tests/gpu/sanitize.py
"""

from __future__ import annotations

import os
import time

import torch

import tilefold as tf

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BF16 = torch.bfloat16


def made(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    """A tensor at the very end of its allocation, so that reading past it is seen."""
    size = 1
    for n in shape:
        size *= n
    start = -size % (512 // dtype.itemsize)
    return torch.randn(start + size, device=DEVICE).to(dtype)[start:].reshape(shape).detach().requires_grad_()


def attention() -> None:
    for sq, sk in ((67, 131), (1, 33), (130, 17)):
        q, k, v = made(1, 4, sq, 64), made(1, 2, sk, 64), made(1, 2, sk, 64)
        tf.attention(q, k, v, causal="bottom_right").float().sum().backward()
    q, k, v = made(1, 2, 45, 100), made(1, 2, 77, 100), made(1, 2, 77, 20)
    seen = torch.rand(45, 77, device=DEVICE) < 0.5
    tf.attention(q, k, v, mask=seen).float().sum().backward()


def streamed_features() -> None:
    x, y = made(37, 2049), made(133, 2049)
    tf.scores(x, y).logsumexp(-1).sum().backward()


def resident_features() -> None:
    for d in (1, 17, 256):
        x, y = made(37, d), made(133, d)
        tf.scores(x, y).logsumexp(-1).sum()


def split_columns() -> None:
    x, y = made(3, 64), made(20011, 64)
    tf.scores(x, y).logsumexp(-1).sum().backward()


def discrete() -> None:
    x, y = made(51, 32, dtype=torch.float32), made(1003, 32, dtype=torch.float32)
    s = tf.scores(x, y)
    tf.fold(s, tf.ArgMax(), tf.TopK(10), tf.Gather(torch.arange(51, device=DEVICE)))
    s.topk(100)
    tf.knn(x, y, 5)
    tf.sample(x, y, seed=1)


def heads() -> None:
    x, w, b = made(53, 72), made(301, 72), made(301)
    y = torch.randint(0, 301, (53,), device=DEVICE)
    tf.linear_cross_entropy(x, w, y, linear_bias=b, label_smoothing=0.1).backward()


def masks() -> None:
    q, k, v = made(2, 2, 75, 64), made(2, 2, 75, 64), made(2, 2, 75, 64)
    ids = torch.arange(75, device=DEVICE) // 20
    table = torch.rand(3, 3, device=DEVICE) < 0.6
    for mask in (
        tf.mask.lengths(torch.tensor([75, 31], device=DEVICE)),
        tf.mask.segments(ids),
        tf.mask.blocks(table, (32, 32)),
    ):
        tf.attention(q, k, v, mask=mask)


def main() -> None:
    if DEVICE.type == "cuda":
        os.environ["TILEFOLD_BACKEND"] = "triton"
        # each tensor an allocation of its own: memcheck sees what leaves it
        os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    began = time.monotonic()
    for part in (attention, streamed_features, resident_features, split_columns, discrete, heads, masks):
        part()
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        print(f"{part.__name__}: {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
