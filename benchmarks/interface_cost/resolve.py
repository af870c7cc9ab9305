"""Arg-max after the loop: rescore the columns of a row's winning parts in float32; ties go to the lowest column.

    s_j = x . y_j + col_j  over the C = BK / 4G columns of each part named in `parts`, of the tile at `first`
Traffic: C D values of Y a row, from L2. Nearly always one part a row; tied parts take another turn.
"""

import torch
import triton
import triton.language as tl


def columns(first: int, part: int, BK: int, G: int) -> list[int]:
    """The columns of a part, in the order of its members: the mapping that generic.to_parts makes."""
    return [first + part // 4 * (BK // G) + 2 * (part % 4) + 8 * (c // 2) + c % 2 for c in range(BK // (4 * G))]


def winners(first, parts, BK: int, G: int):
    """[rows, C]: the columns of the lowest winning part of each row, for torch tensors.

    Integers only: log2 of a power of two in double precision is off by an ulp on a GPU (log2(8) = 3 - 4e-16), and a
    truncation then names the part below.
    """
    numbers = torch.arange(4 * G, device=parts.device)
    live = (parts[:, None].long() >> numbers) & 1
    part = torch.where(live == 1, numbers, 4 * G).amin(1)
    offset = torch.tensor([columns(0, p, BK, G) for p in range(4 * G)] + [[1 << 30] * (BK // (4 * G))])
    return first.long()[:, None] + offset.to(first.device)[part]


def check_winners(device, BK: int = 128) -> None:
    """winners() against the reshape that the kernels do, for every part."""
    for G in (1, 2, 4, 8):
        tile = torch.arange(BK).reshape(1, G, BK // (8 * G), 4, 2).permute(0, 1, 3, 2, 4).reshape(4 * G, -1)
        parts = (1 << torch.arange(4 * G)).to(torch.int32)  # bit 31 becomes the sign
        for tied in (parts, parts | parts[-1]):
            got = winners(torch.full([4 * G], 3 * BK, device=device), tied.to(device), BK, G)
            if not torch.equal(got.cpu(), tile + 3 * BK):
                raise AssertionError(f"the check of arg-max names the wrong columns at G = {G}")


@triton.jit
def argmax_resolve(
    x_ptr,
    y_ptr,
    col_ptr,
    first_ptr,
    parts_ptr,
    out_ptr,
    N,
    BN: tl.constexpr,
    D: tl.constexpr,
    BK: tl.constexpr,
    G: tl.constexpr,
):
    C: tl.constexpr = BK // (4 * G)
    rows = tl.program_id(0) * BN + tl.arange(0, BN)
    inside = rows < N
    d = tl.arange(0, D)
    c = tl.arange(0, C)
    x = tl.load(x_ptr + rows.to(tl.int64)[:, None] * D + d[None, :], mask=inside[:, None], other=0).to(tl.float32)
    first = tl.load(first_ptr + rows, mask=inside, other=0)
    parts = tl.load(parts_ptr + rows, mask=inside, other=0)
    best = tl.full([BN], float("-inf"), tl.float32)
    arg = tl.full([BN], 2147483647, tl.int32)
    while tl.max((parts != 0).to(tl.int32), 0) > 0:
        lowest = parts & -parts
        part = ((lowest.to(tl.float32).to(tl.int32, bitcast=True) >> 23) & 255) - 127  # log2 of a power of two
        live = parts != 0
        part = tl.where(live, part, 0)
        j = (first + (part // 4) * (BK // G) + 2 * (part % 4))[:, None] + (8 * (c // 2) + c % 2)[None, :]  # [BN, C]
        y = tl.load(y_ptr + j.to(tl.int64)[:, :, None] * D + d[None, None, :]).to(tl.float32)
        s = tl.sum(x[:, None, :] * y, 2) + tl.load(col_ptr + j)
        s = tl.where(live[:, None], s, float("-inf"))
        m = tl.max(s, 1)
        a = tl.min(tl.where(s == m[:, None], j, 2147483647), 1)
        better = live & ((m > best) | ((m == best) & (a < arg)))
        best = tl.where(better, m, best)
        arg = tl.where(better, a, arg)
        parts = parts & (parts - 1)
    tl.store(out_ptr + rows, arg, mask=inside)
