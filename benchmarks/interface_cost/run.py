"""Each generic loop beside its hand-fused prototype and cuBLAS, on one H200, interleaved.

    python run.py --prototypes DIR [--out DIR] [--cases CASE[:VARIANT+VARIANT],...] [--rounds 30]

VARIANTS names what a case can run beside the plain generic loop; without a list it runs all of them. A child process
runs the cases; when it dies or takes too long, another one goes on, with that case again but without variants.
Every implementation is checked against float64 on sampled rows or a whole head first; a wrong one gets no speed.
A round times every implementation once, in turning order. Reported are medians over the rounds, and the median over the
rounds of prototype time / generic time. Writes interface_cost.json. The exit status is 0 if nothing is wrong and the
best generic variant of every case has at least 0.97 of the prototype's speed.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
import triton
import variants
from compile_check import load
from resolve import argmax_resolve, check_winners, winners
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

LOG2E = 1.4426950408889634
VARIANTS = {
    "logsumexp": ("load", "turns", "stagger", "3groups"),
    "argmax": ("load", "turns", "stagger", "g2"),
    "argmax_k1024": ("load", "turns", "stagger", "g2"),
    "attention_fwd": ("g4",),
    "attention_bwd": (),
    "topk_candidates": ("turns",),
}
LIMIT_S = 90  # a case, most of it compilation
ENOUGH = 0.97
DEVICE = "cuda"


def arguments(args: dict, values: dict) -> dict:
    """The kernel's arguments from their description and the tensors of a case."""
    out = {}
    for name, a in args.items():
        if not (isinstance(a, tuple) and a and isinstance(a[0], str)):
            out[name] = a
        elif a[0] == "desc":
            layout = variants.layout_of(a[2], getattr(gl, variants.LONG[a[1]]))
            out[name] = TensorDescriptor.from_tensor(values[name], list(a[2]), layout)
        elif a[0] == "ptrs":
            out[name] = tuple(values.get(name, ()))
        else:
            out[name] = values[name]
    return out


def launcher(variant, values, grid, num_warps=4):
    kernel, args = variant
    kwargs = arguments(args, values)
    # fused multiply-adds by name: triton 3.10 stops making them by default
    return lambda: kernel[grid](**kwargs, num_warps=num_warps, enable_fp_fusion=True)


def chosen(name, wanted):
    """(implementation, key suffix in variants.generic_rows) of a case: the plain loop, then its variants."""
    return [("generic", "")] + [(f"generic {v}", f"_{v}") for v in VARIANTS[name] if wanted is None or v in wanted]


class Case:
    """Implementations of one case: launch closures and checks, in the order in which they were added."""

    def __init__(self, name, shape, dtype, flops):
        self.name, self.shape, self.dtype, self.flops = name, shape, dtype, flops
        self.launch, self.error, self.limit, self.failed = {}, {}, {}, {}

    def add(self, impl, make, check=None, limit=0.0, poison=()):
        """make() -> launch; check() -> error after a launch on poisoned outputs, right if <= limit (NaN is wrong)."""
        for t in poison:
            t.fill_(float("nan") if t.is_floating_point() else -1)
        began = time.time()
        try:
            launch = make()
            launch()
            torch.cuda.synchronize()
            error = float(check()) if check else 0.0
        except Exception as problem:
            print(f"  {impl}: {type(problem).__name__}: {str(problem)[:300]}", flush=True)
            self.failed[impl] = type(problem).__name__
            return
        self.launch[impl], self.error[impl], self.limit[impl] = launch, error, limit
        print(
            f"  {impl}: error {error:.3g} (limit {limit:.3g}) {'ok' if self.right(impl) else 'WRONG'},"
            f" {time.time() - began:.1f} s",
            flush=True,
        )

    def right(self, impl):
        return self.error[impl] <= self.limit[impl]


def measure(case: Case, rounds: int) -> dict:
    """impl -> list of ms, one a round."""
    impls = [i for i in case.launch if case.right(i)]
    flush = torch.empty(64 << 20, dtype=torch.int32, device=DEVICE)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def once(launch, repeat):
        flush.zero_()
        begin.record()
        for _ in range(repeat):
            launch()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / repeat

    repeat = {}
    for i in impls:
        once(case.launch[i], 2)
        repeat[i] = max(1, round(8.0 / once(case.launch[i], 2)))
    times = {i: [] for i in impls}
    for r in range(rounds):
        turn = impls[r % len(impls) :] + impls[: r % len(impls)]
        for i in turn if r % 2 else reversed(turn):
            times[i].append(once(case.launch[i], repeat[i]))
    return times


def add_cublas(case):
    a = torch.randn(8192, 8192, device=DEVICE, dtype=torch.float16)
    b = torch.randn(8192, 8192, device=DEVICE, dtype=torch.float16)
    c = torch.empty(8192, 8192, device=DEVICE, dtype=torch.float16)
    case.add("cublas", lambda: lambda: torch.mm(a, b, out=c))


def points(N, K, D):
    x = torch.randn(N, D, device=DEVICE, dtype=torch.float16)
    y = torch.randn(K, D, device=DEVICE, dtype=torch.float16)
    return x, y, -0.5 * y.float().square().sum(1)


def sampled(x, y, col, rows):
    return x[rows].double() @ y.double().T + col.double()


def logsumexp(generic, proto, wanted):
    N, K, D = 1 << 20, 8192, 128
    x, y, col = points(N, K, D)
    x *= 0.25  # so that several columns count in a row
    case = Case("logsumexp", {"N": N, "K": K, "D": D}, "fp16", 2 * N * K * D)
    rows = torch.randint(0, N, (512,), device=DEVICE)
    s = sampled(x, y, col, rows)
    out = torch.empty(N, device=DEVICE)
    acc = torch.empty(1, device=DEVICE, dtype=torch.float16)
    values = {"x_d": x, "y_d": y, "v_d": y, "col_d": col, "outs": (out,), "acc_ptr": acc, "N": N, "K": K, "unit": 1.0}
    natural = torch.logsumexp(s, 1)
    for impl, suffix in chosen("logsumexp", wanted):
        kernel, args = generic["lse_d128" + suffix]
        case.add(
            impl,
            lambda v=(kernel, args): launcher(v, values, (triton.cdiv(N, v[1]["NWG"] * v[1]["BM"]), 1)),
            lambda: (out[rows] - natural).abs().max(),
            2e-5,
            (out,),
        )
    base2 = torch.logsumexp(s / LOG2E, 1) * LOG2E
    out2 = torch.empty(N, device=DEVICE)
    case.add(
        "prototype",
        lambda: launcher(
            proto["proto_lse_d128"], {"x_d": x, "c_d": y, "cn_ptr": col, "out_ptr": out2, "K": K}, (N // 256,)
        ),
        lambda: (out2[rows] - base2).abs().max(),
        2e-5,
        (out2,),
    )
    return case


def argmax(generic, proto, wanted, K=8192):
    N, D, BK = 1 << 20, 128, 128
    x, y, col = points(N, K, D)
    case = Case("argmax" if K == 8192 else f"argmax_k{K}", {"N": N, "K": K, "D": D}, "fp16", 2 * N * K * D)
    rows = torch.randint(0, N, (4096,), device=DEVICE)
    s = sampled(x, y, col, rows)
    best = s.max(1).values
    acc = torch.empty(1, device=DEVICE, dtype=torch.float16)

    def chunk_gap(columns):
        """How far the best column of a chunk [rows, C] is below the best of all."""
        return (best - s.gather(1, columns.long()).max(1).values).max()

    check_winners(DEVICE)
    for impl, suffix in chosen(case.name, wanted):
        G = generic["argmax_d128" + suffix][1]["G"]
        top, first, parts = (
            torch.empty(N, device=DEVICE),
            *(torch.empty(N, device=DEVICE, dtype=torch.int32) for _ in range(2)),
        )
        values = {
            "x_d": x,
            "y_d": y,
            "v_d": y,
            "col_d": col,
            "outs": (top, first, parts),
            "acc_ptr": acc,
            "N": N,
            "K": K,
            "unit": 1.0,
        }

        def check(top=top, first=first, parts=parts, G=G):
            wrong = (first < 0).any() | (first >= K).any() | (parts == 0).any()
            if wrong:
                return float("nan")
            gap, off = chunk_gap(winners(first[rows], parts[rows], BK, G)), (top[rows] - best).abs().max()
            print(f"    gap {gap.item():.3g} value {off.item():.3g}")
            return torch.maximum(gap, off)

        variant = generic["argmax_d128" + suffix]
        case.add(
            impl,
            lambda v=variant, values=values: launcher(v, values, (N // 256, 1)),
            check,
            1e-3,
            (top, first, parts),
        )
        if impl == "generic":
            final = torch.empty(N, device=DEVICE, dtype=torch.int32)
            case.add(
                "resolve",
                lambda f=first, p=parts, o=final, G=G: (
                    lambda: argmax_resolve[(triton.cdiv(N, 16),)](
                        x, y, col, f, p, o, N, BN=16, D=D, BK=BK, G=G, num_warps=4
                    )
                ),
                lambda o=final: chunk_gap(o[rows][:, None]),
                1e-3,
                (final,),
            )
    code = torch.empty(N, device=DEVICE, dtype=torch.int32)

    def proto_check(CH=8, NG=4):
        o = code[rows]
        if (o < 0).any():
            return float("nan")
        c = torch.arange(CH, device=DEVICE)
        start = o // 4 // NG * BK + o // 4 % NG * 4 * CH + 2 * (o % 4)
        return chunk_gap(start[:, None] + 8 * (c // 2) + c % 2)

    case.add(
        "prototype",
        lambda: launcher(
            proto["proto_argmax_d128"],
            {"x_d": x, "c_d": y, "cn_ptr": col, "out_ptr": code, "N": N, "K": K},
            (N // 256,),
        ),
        proto_check,
        1e-3,
        (code,),
    )
    return case


def heads(B, H, S, D):
    return [torch.randn(B * H * S, D, device=DEVICE, dtype=torch.bfloat16) for _ in range(3)]


def relative(a, ref):
    return ((a.double() - ref).norm() / ref.norm()).item()


def attention_fwd(generic, proto, wanted):
    B, H, S, D = 4, 16, 8192, 128
    q, k, v = heads(B, H, S, D)
    scale = D**-0.5
    case = Case("attention_fwd", {"B": B, "H": H, "S": S, "D": D, "causal": False}, "bf16", 4 * B * H * S * S * D)
    h = slice(37 * S, 38 * S)
    s = q[h].double() @ k[h].double().T * scale
    lse_ref, o_ref = torch.logsumexp(s, 1), torch.softmax(s, 1) @ v[h].double()
    del s

    def check(o, lse):
        e = torch.tensor(
            [
                relative(o[h], o_ref),
                (lse[h] - lse_ref).abs().max().item() * 60,
                0.0 if o.isfinite().all() and lse.isfinite().all() else float("nan"),
            ]
        )
        return e.max()

    for impl, suffix in chosen("attention_fwd", wanted):
        o, lse = torch.empty_like(q), torch.empty(B * H * S, device=DEVICE)
        values = {
            "x_d": q,
            "y_d": k,
            "v_d": v,
            "col_d": k,
            "outs": (lse,),
            "acc_ptr": o,
            "N": S,
            "K": S,
            "unit": scale,
        }
        case.add(
            impl,
            lambda v=generic["softmax_d128" + suffix], values=values: launcher(v, values, (S // 128, B * H)),
            lambda o=o, lse=lse: check(o, lse),
            6e-3,
            (o, lse),
        )
    o2, lse2 = torch.empty_like(q), torch.empty(B * H * S, device=DEVICE)
    values = {"q_d": q, "k_d": k, "v_d": v, "o_ptr": o2, "lse_ptr": lse2, "S": S, "scale": scale * LOG2E}
    case.add(
        "prototype",
        lambda: launcher(proto["proto_softmax_d128"], values, (S // 128, B * H)),
        lambda: check(o2, lse2),
        6e-3,
        (o2, lse2),
    )
    return case


def attention_bwd(generic, proto, wanted):
    B, H, S, D = 4, 16, 8192, 128
    q, k, v = heads(B, H, S, D)
    do = torch.randn_like(q)
    scale = D**-0.5
    case = Case("attention_bwd", {"B": B, "H": H, "S": S, "D": D, "causal": False}, "bf16", 10 * B * H * S * S * D)
    lse, delta = torch.empty(B * H * S, device=DEVICE), torch.empty(B * H * S, device=DEVICE)
    for i in range(B * H):
        h = slice(i * S, (i + 1) * S)
        s = q[h].float() @ k[h].float().T * scale
        lse[h] = torch.logsumexp(s, 1)
        delta[h] = (do[h].float() * (torch.softmax(s, 1) @ v[h].float())).sum(1)
    h = slice(37 * S, 38 * S)
    p = torch.softmax(q[h].double() @ k[h].double().T * scale, 1)
    dv_ref = p.T @ do[h].double()
    ds = p * (do[h].double() @ v[h].double().T - (do[h].double() * (p @ v[h].double())).sum(1, keepdim=True))
    dq_ref, dk_ref = ds @ k[h].double() * scale, ds.T @ q[h].double() * scale
    del p, ds, s
    lse2 = lse * LOG2E

    def check(dq, dk, dv):
        finite = dq.isfinite().all() and dk.isfinite().all() and dv.isfinite().all()
        e = [relative(dq[h] * scale, dq_ref), relative(dk[h] * scale, dk_ref), relative(dv[h], dv_ref)]
        print(f"    dQ {e[0]:.3g} dK {e[1]:.3g} dV {e[2]:.3g}")
        return max(e) if finite else float("nan")

    for impl, suffix in chosen("attention_bwd", wanted):
        dq, dk, dv = torch.zeros(B * H * S, D, device=DEVICE), torch.empty_like(q), torch.empty_like(q)
        values = {
            "x_d": q,
            "g_d": do,
            "y_d": k,
            "w_d": v,
            "o_d": dq,
            "a_d": lse2,
            "b_d": delta,
            "outy_ptr": dk,
            "outw_ptr": dv,
            "N": S,
            "K": S,
            "unit": scale,
        }
        case.add(
            impl,
            lambda v=generic["backward_d128" + suffix], values=values: launcher(v, values, (S // 128, B * H)),
            lambda t=(dq, dk, dv): check(*t),
            8e-3,
            (dk, dv),
        )
    dq, dk, dv = torch.zeros(B * H * S, D, device=DEVICE), torch.empty_like(q), torch.empty_like(q)
    values = {
        "q_d": q,
        "k_d": k,
        "v_d": v,
        "do_d": do,
        "dq_d": dq,
        "l_d": lse2,
        "e_d": delta,
        "dq_ptr": dq,
        "dk_ptr": dk,
        "dv_ptr": dv,
        "lse_ptr": lse2,
        "del_ptr": delta,
        "S": S,
        "scale": scale * LOG2E,
    }
    case.add(
        "prototype",
        lambda: launcher(proto["proto_backward_d128"], values, (S // 128, B * H)),
        lambda t=(dq, dk, dv): check(*t),
        8e-3,
        (dk, dv),
    )
    return case


def topk_candidates(generic, proto, wanted):
    # the pass over all columns of top-10 at 8192 x 2^20 x 256 in two halves of K to fill the chip: 16384 rows x 2^19
    N, K, D, k, CAP, BK = 16384, 1 << 19, 256, 10, 64, 128
    x, y, col = points(N, K, D)
    case = Case("topk_candidates", {"N": N, "K": K, "D": D, "k": k}, "fp16", 2 * N * K * D)
    every, rank = 32, 6
    sample = (x @ y[::every].T).float() + col[::every]
    tau = sample.topk(rank, 1).values[:, -1].contiguous()
    del sample
    rows = torch.randint(0, N, (64,), device=DEVICE)
    best = sampled(x, y, col, rows).topk(k, 1).values
    acc = torch.empty(1, device=DEVICE, dtype=torch.float16)
    c = torch.arange(8, device=DEVICE)

    def check(count, W, cap, start):
        """start(segment entries) -> first member of each entry's chunk; the entries' members must hold the k best."""
        n = count.view(N, W)[rows].long()
        if (n < 0).any() or (n >= cap - 1).any():
            return float("nan")
        worst = 0.0
        for i, row in enumerate(rows.tolist()):
            live = torch.arange(cap, device=DEVICE)[None, :] < n[i][:, None]
            column = (start(row)[live][:, None] + 8 * (c // 2) + c % 2).reshape(-1).long()
            value = (x[row].double() @ y[column].double().T + col[column].double()).topk(k).values
            worst = max(worst, (value - best[i]).abs().max().item())
        return worst

    W = 16
    keys, first, count = (
        torch.empty(N * W * CAP, device=DEVICE),
        *(torch.empty(n, device=DEVICE, dtype=torch.int32) for n in (N * W * CAP, N * W)),
    )
    values = {
        "x_d": x,
        "y_d": y,
        "v_d": y,
        "col_d": col,
        "given": (tau,),
        "sink": (keys, first, count),
        "acc_ptr": acc,
        "N": N,
        "K": K,
        "unit": 1.0,
    }
    w = torch.arange(W, device=DEVICE)
    for impl, suffix in chosen("topk_candidates", wanted):
        case.add(
            impl,
            lambda v=generic["above_d256" + suffix]: launcher(v, values, (N // 128, 1)),
            lambda: check(count, W, CAP, lambda row: first.view(N, W, CAP)[row] + (w // 4 * 32 + 2 * (w % 4))[:, None]),
            1e-3,
            (keys, first, count),
        )
    cap = 4 * CAP
    keys2, chunk, count2 = (
        torch.empty(N * 4 * cap, device=DEVICE),
        *(torch.empty(n, device=DEVICE, dtype=torch.int32) for n in (N * 4 * cap, N * 4)),
    )
    proto_values = {
        "x_d": x,
        "c_d": y,
        "cn_ptr": col,
        "tau_ptr": tau,
        "buf_ptr": keys2,
        "id_ptr": chunk,
        "cnt_ptr": count2,
        "N": N,
        "K": K,
        "CAP": cap,
    }

    def start(row):
        o = chunk.view(N, 4, cap)[row]
        return o // 4 * BK + o % 4 * 32 + 2 * torch.arange(4, device=DEVICE)[:, None]

    case.add(
        "prototype",
        lambda: launcher(proto["proto_above_d256"], proto_values, (N // 128,)),
        lambda: check(count2, 4, cap, start),
        1e-3,
        (keys2, chunk, count2),
    )
    return case


def run_case(name: str, wanted: list[str] | None, prototypes: Path, rounds: int) -> list[dict]:
    torch.manual_seed(sum(name.encode()))
    torch.backends.cuda.matmul.allow_tf32 = False
    generic, proto = variants.everything(), variants.prototypes(lambda n: load(prototypes, n))
    make = {"argmax_k1024": lambda *a: argmax(*a, 1024)}.get(name) or globals()[name]
    case = make(generic, proto, wanted)
    add_cublas(case)
    times = measure(case, rounds)
    records = []
    for impl, error in case.error.items():
        record = {
            "case": case.name,
            "shape": case.shape,
            "dtype": case.dtype,
            "impl": impl,
            "correct": case.right(impl),
            "error": error,
        }
        if impl in times:
            t = sorted(times[impl])
            ms = t[len(t) // 2]
            flops = 2 * 8192**3 if impl == "cublas" else 0 if impl == "resolve" else case.flops
            record.update(ms=ms, ms_quartiles=[t[len(t) // 4], t[3 * len(t) // 4]], tflops=flops / ms / 1e9)
            if "prototype" in times and impl.startswith("generic"):
                r = sorted(p / g for p, g in zip(times["prototype"], times[impl]))
                record.update(ratio=r[len(r) // 2], ratio_quartiles=[r[len(r) // 4], r[3 * len(r) // 4]])
        records.append(record)
    for impl, problem in case.failed.items():
        records.append({"case": case.name, "impl": impl, "correct": False, "problem": problem})
    return records


def table(records: list[dict]) -> str:
    lines = [f"{'case':16s} {'impl':18s} {'ms':>8s} {'TFLOP/s':>8s} {'x proto':>8s} {'quartiles':>15s} {'error':>9s}"]
    for r in records:
        ratio = (
            f"{r['ratio']:8.3f} {r['ratio_quartiles'][0]:7.3f}-{r['ratio_quartiles'][1]:.3f}"
            if "ratio" in r
            else " " * 22
        )
        speed = f"{r['ms']:8.3f} {r['tflops']:8.1f}" if "ms" in r else f"   {r.get('problem', 'WRONG')[:14]:14s}"
        lines.append(f"{r['case']:16s} {r['impl']:18s} {speed} {ratio:24s} {r.get('error', float('nan')):9.2e}")
    return "\n".join(lines)


def verdict(records: list[dict], names: list[str], failed: list[str]) -> tuple[list[str], bool]:
    """One line a case: the best right generic variant against the prototype."""
    lines, good = [], True
    for name in names:
        mine = [r for r in records if r["case"] == name and r["impl"].startswith("generic")]
        right = [r for r in mine if "ratio" in r]
        wrong = [r["impl"] for r in mine if not r["correct"]]
        best = max(right, key=lambda r: r["ratio"], default=None)
        enough = best is not None and best["ratio"] >= ENOUGH
        good &= enough and not wrong and name not in failed
        text = f"{best['impl']} {best['ratio']:.3f}" if best else "no ratio: the prototype or every variant is wrong"
        lines.append(f"{name:16s} {'ok ' if enough else 'LOW'} {text}{'; wrong: ' + ', '.join(wrong) if wrong else ''}")
    lines += [f"{name:16s} did not end" for name in failed]
    return lines, good


def parse_cases(text: str | None) -> dict[str, list[str] | None]:
    """CASE[:VARIANT+VARIANT],... -> case -> variants, None for all of them."""
    if not text:
        return dict.fromkeys(VARIANTS)
    cases: dict[str, list[str] | None] = {}
    for item in text.split(","):
        name, _, list_ = item.partition(":")
        wanted = [v for v in list_.split("+") if v] if ":" in item else None
        unknown = [v for v in wanted or () if v not in VARIANTS.get(name, ())]
        if name not in VARIANTS or unknown:
            raise SystemExit(f"{item}: known are {VARIANTS}")
        cases[name] = wanted
    return cases


def supervise(options) -> tuple[list[dict], list[str]]:
    """Run the cases in a child; a hang or a crash costs the case it happened in."""
    cases = parse_cases(options.cases)
    todo, records, failed = list(cases), [], []
    for name in todo:
        (options.out / f"{name}.part").unlink(missing_ok=True)
    while todo:
        child = subprocess.Popen(
            [
                sys.executable,
                __file__,
                "--prototypes",
                options.prototypes,
                "--out",
                options.out,
                "--rounds",
                str(options.rounds),
                "--child",
                "--cases",
                ",".join(name if cases[name] is None else f"{name}:{'+'.join(cases[name])}" for name in todo),
            ]
        )
        deadline = time.time() + LIMIT_S
        while todo and time.time() < deadline:
            part = options.out / f"{todo[0]}.part"
            ended = child.poll() is not None
            if part.exists() and part.stat().st_size:
                time.sleep(0.2)
                records += json.loads(part.read_text())
                part.unlink()
                todo.pop(0)
                deadline = time.time() + LIMIT_S
            elif ended:
                break
            else:
                time.sleep(0.1)
        if todo:
            name, status = todo[0], child.poll()
            print(f"{name}: {'no end in time' if status is None else f'ended with {status}'}", flush=True)
            if cases[name] == [] or not VARIANTS[name]:
                failed.append(todo.pop(0))
            cases[name] = []
        child.kill()
        child.wait()
    return records, failed


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--prototypes", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--cases", help=f"CASE[:VARIANT+VARIANT],...; all of {VARIANTS} if left out")
    parser.add_argument("--child", action="store_true", help="run the cases in this process, without the table")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    cases = parse_cases(options.cases)
    if options.child:
        for name, wanted in cases.items():
            began = time.time()
            print(name, flush=True)
            part = options.out / f"{name}.part"
            part.with_suffix(".tmp").write_text(json.dumps(run_case(name, wanted, options.prototypes, options.rounds)))
            part.with_suffix(".tmp").replace(part)
            torch.cuda.empty_cache()
            print(f"  {time.time() - began:.1f} s", flush=True)
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    records, failed = supervise(options)
    stamp = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "run": f"{time.time_ns():x}",
        "versions": {
            "torch": torch.__version__,
            "triton": triton.__version__,
            "cuda": torch.version.cuda,
            "gpu": torch.cuda.get_device_name(),
        },
    }
    (options.out / "interface_cost.json").write_text(json.dumps([{**r, **stamp} for r in records], indent=1))
    print(table(records))
    lines, good = verdict(records, list(cases), failed)
    print("\n".join(lines))
    return not good


if __name__ == "__main__":
    sys.exit(main())
