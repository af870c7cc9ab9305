"""Every case by name. Shapes of the GPU are those that results and goals are stated for; CPU shapes take seconds."""

from __future__ import annotations

from .case import Case
from .cases import attention, ceilings, contrastive, decode, heads, levels, llama, nearest, overhead, rows

_CASES = (
    ceilings.COPY,
    ceilings.MATMUL,
    rows.LOGSUMEXP,
    rows.LOGSUMEXP_BWD,
    rows.SOFTMAX_SUM,
    rows.SOFTMAX_SUM_BWD,
    levels.LEVELS,
    attention.FORWARD,
    attention.BACKWARD,
    decode.DECODE,
    nearest.ARGMAX,
    nearest.KNN,
    heads.LINEAR_CROSS_ENTROPY,
    heads.SAMPLE,
    contrastive.CONTRASTIVE,
    llama.TRAIN,
    llama.GENERATE,
    overhead.OVERHEAD,
)


def cases() -> dict[str, Case]:
    return {case.name: case for case in _CASES}
