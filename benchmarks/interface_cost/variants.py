"""What is compiled and run: each generic variant and the hand-fused loop beside it."""

import folds
import generic
from triton.experimental.gluon import language as gl

LONG = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}


def layout_of(block, dtype):
    if len(block) == 1:
        return gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=1)
    return gl.NVMMASharedLayout.get_default_for(list(block), dtype)


def rows(fold, *, dtype, BM, BK, D, ST, outs, NWG=2, col=0, DV=None, score=None, G=None, append=0, order=0):
    """Arguments of stream_rows, by name, as compile_check describes them."""
    desc = ("desc", dtype, (BM, D))
    y = ("desc", dtype, (BK, D))
    return generic.stream_rows, {
        "x_d": desc,
        "y_d": y,
        "v_d": ("desc", dtype, (BK, DV)) if DV else y,
        "col_d": ("ptr", "fp32") if col == 2 else ("desc", "fp32", (BK,)) if col else y,
        "outs": ("ptrs", *outs) if outs else None,
        "given": ("ptrs", "fp32") if any(s[2] == folds.GIVEN for s in fold.state) else None,
        "sink": ("ptrs", "fp32", "i32", "i32") if append else None,
        "acc_ptr": ("ptr", dtype),
        "N": ("int16",),
        "K": ("int16",),
        "unit": ("float",),
        "BM": BM,
        "BK": BK,
        "DV": DV or D,
        "ST": ST,
        "NWG": NWG,
        "G": G or fold.groups,
        "HAS_COL": int(col),
        "HAS_V": bool(DV),
        "APPEND": append,
        "ORDER": order,
        "STATE": fold.state,
        "SCORE": score or (folds.score_add_col if col else folds.score_plain),
        "STEP": fold.step,
        "CLOSE": fold.close,
        "MERGE": fold.merge,
        "FINISH": fold.finish,
    }


def generic_rows():
    wide = {"dtype": "fp16", "BM": 128, "BK": 128, "D": 128, "ST": 3, "col": 1}
    lse = {"fold": folds.LSE, "outs": ("fp32",), **wide}
    arg = {"fold": folds.ARGMAX, "outs": ("fp32", "i32", "i32"), **wide}
    soft = {
        "fold": folds.SOFTMAX,
        "outs": ("fp32",),
        "dtype": "bf16",
        "BM": 64,
        "BK": 128,
        "D": 128,
        "ST": 2,
        "DV": 128,
    }
    above = {"fold": folds.ABOVE, "outs": (), "dtype": "fp16", "BM": 64, "BK": 128, "D": 256, "ST": 2, "col": 1}
    above["append"] = 64
    return {
        "lse_d128": rows(**lse),
        "lse_d128_load": rows(**{**lse, "col": 2}),
        "lse_d128_turns": rows(**lse, order=1),
        "lse_d128_stagger": rows(**lse, order=2),
        "lse_d128_3groups": rows(**{**lse, "BM": 64, "NWG": 3}),
        "argmax_d128": rows(**arg),
        "argmax_d128_load": rows(**{**arg, "col": 2}),
        "argmax_d128_turns": rows(**arg, order=1),
        "argmax_d128_stagger": rows(**arg, order=2),
        "argmax_d128_g2": rows(**arg, G=2),
        "softmax_d128": rows(**soft),
        "softmax_d128_g4": rows(**soft, G=4),
        "softmax_d64_3groups": rows(**{**soft, "D": 64, "DV": 64, "NWG": 3}),
        "above_d256": rows(**above),
        "above_d256_turns": rows(**above, order=1),
    }


def cols(*, dtype, M, NK, D, ST, TB, weight=folds.softmax_weight, dscore=folds.softmax_dscore):
    """Arguments of stream_cols."""
    streamed, resident, stat = ("desc", dtype, (M, D)), ("desc", dtype, (NK, D)), ("desc", "fp32", (M,))
    return generic.stream_cols, {
        "x_d": streamed,
        "g_d": streamed,
        "y_d": resident,
        "w_d": resident,
        "o_d": ("desc", "fp32", (64, D // 2 if M == 64 else D)),
        "a_d": stat,
        "b_d": stat,
        "outy_ptr": ("ptr", dtype),
        "outw_ptr": ("ptr", dtype),
        "N": ("int16",),
        "K": ("int16",),
        "unit": ("float",),
        "M": M,
        "NK": NK,
        "D": D,
        "ST": ST,
        "TB": TB,
        "WEIGHT": weight,
        "DSCORE": dscore,
    }


def generic_cols():
    return {
        "backward_d128": cols(dtype="bf16", M=64, NK=128, D=128, ST=2, TB=2),
        "backward_d64": cols(dtype="bf16", M=128, NK=128, D=64, ST=2, TB=1),
    }


def prototypes(load):
    p = load("generic_fold")
    a = load("argmax_chunked")
    f = load("attention_forward")
    b = load("attention_backward")
    t = load("topk_append")
    x, y = ("desc", "fp16", (128, 128)), ("desc", "fp16", (128, 128))
    q, k = ("desc", "bf16", (64, 128)), ("desc", "bf16", (128, 128))
    ptr, i, fl = ("ptr", "fp32"), ("int16",), ("float",)
    return {
        "proto_lse_d128": (
            p.stream,
            {
                "x_d": x,
                "c_d": y,
                "cn_ptr": ptr,
                "out_ptr": ptr,
                "K": i,
                "BM": 128,
                "BK": 128,
                "ST": 3,
                "INIT": p.lse_init_g,
                "STEP": p.lse_step,
                "FIN": p.lse_fin,
                "SCORE": p.score,
            },
        ),
        "proto_argmax_d128": (
            a.assign_ws,
            {
                "x_d": x,
                "c_d": y,
                "cn_ptr": ptr,
                "out_ptr": ("ptr", "i32"),
                "N": i,
                "K": i,
                "BM": 128,
                "BK": 128,
                "ST": 3,
                "CH": 8,
                "NWG": 2,
                "PP": 0,
            },
        ),
        "proto_softmax_d128": (
            f.attn_fwd,
            {
                "q_d": q,
                "k_d": k,
                "v_d": k,
                "o_ptr": ("ptr", "bf16"),
                "lse_ptr": ptr,
                "S": i,
                "scale": fl,
                "BM": 64,
                "BN": 128,
                "D": 128,
                "ST": 2,
                "PP": 0,
                "OV": 1,
                "NWG": 2,
            },
        ),
        "proto_above_d256": (
            t.topk_ws,
            {
                "x_d": ("desc", "fp16", (64, 256)),
                "c_d": ("desc", "fp16", (128, 256)),
                "cn_ptr": ptr,
                "tau_ptr": ptr,
                "buf_ptr": ptr,
                "id_ptr": ("ptr", "i32"),
                "cnt_ptr": ("ptr", "i32"),
                "N": i,
                "K": i,
                "CAP": i,
                "BM": 64,
                "BK": 128,
                "ST": 2,
                "CH": 8,
                "RAW": 0,
            },
        ),
        "proto_backward_d128": (
            b.bwd,
            {
                "q_d": q,
                "k_d": k,
                "v_d": k,
                "do_d": q,
                "dq_d": ("desc", "fp32", (64, 64)),
                "l_d": ("desc", "fp32", (64,)),
                "e_d": ("desc", "fp32", (64,)),
                "dq_ptr": ptr,
                "dk_ptr": ("ptr", "bf16"),
                "dv_ptr": ("ptr", "bf16"),
                "lse_ptr": ptr,
                "del_ptr": ptr,
                "S": i,
                "scale": fl,
                "M": 64,
                "NK": 128,
                "D": 128,
                "ST": 2,
                "DSB": 2,
                "MODE": 1,
            },
        ),
    }


def everything():
    return {**generic_rows(), **generic_cols()}
