"""Caches in pages and what is asked of them, for every executor."""

import torch
from torch import Tensor

CASES = {
    "one query": (2, 1, 4, 2, {}),
    "causal": (2, 3, 4, 4, {"causal": "bottom_right", "softcap": 2.0}),
    "window": (3, 5, 8, 2, {"causal": "bottom_right", "window": (20, 0)}),
    "slopes": (2, 2, 4, 1, {"causal": "bottom_right", "alibi_slopes": torch.rand(4), "sinks": torch.rand(4)}),
    "dropout": (2, 2, 4, 2, {"dropout_p": 0.4, "seed": 3}),
}
SIZES = ((1, 9), (16, 5), (48, 3), (700, 3), (33, 1))  # keys of a page, pages of an entry


def caches(batch: int, kv: int, size: int, places: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """Keys, values, table, lengths; pages without a key have a wild number, and what nobody owns holds NaN."""
    pages = batch * places + 2
    table = torch.randperm(pages)[: batch * places].reshape(batch, places).int()
    lengths = torch.randint(1, places * size + 1, (batch,))
    lengths[0] = places * size
    k, v = torch.randn(pages, size, kv, 16).to(dtype), torch.randn(pages, size, kv, 12).to(dtype)
    owned = torch.zeros(pages, dtype=torch.bool)
    owned[table.long()] = True
    k[~owned] = v[~owned] = torch.nan
    used = torch.arange(places) * size < lengths.unsqueeze(-1)
    return k, v, table.masked_fill(~used, -77), lengths
