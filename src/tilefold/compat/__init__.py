"""Attention under the names and signatures that other libraries gave it: a call moves by changing its import."""

from .flash_attention import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from .sdpa import scaled_dot_product_attention
from .transformers import register_transformers

__all__ = [
    "flash_attn_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "register_transformers",
    "scaled_dot_product_attention",
]
