"""Compile every variant for sm_90 without a GPU and read what the compiler made of it.

    python compile_check.py [--prototypes DIR] [--only NAME]

Prints registers, spills, shared memory and the SASS counts; fails on "C75" (WGMMA serialised by ptxas), on spills, and
where a lane holds other columns than the resolve step takes it to hold (layouts.py).
"""

import argparse
import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

sys.path.insert(0, str(Path(__file__).parent))
import layouts
import resolve
import variants

BIN = Path(triton.__file__).parent / "backends/nvidia/bin"


def load(folder: Path, name: str):
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def compile_one(kernel, args: dict, num_warps: int = 4):
    """args: name -> ("desc", dtype, block) | ("ptr", dtype) | ("int",) | ("float",) | a constant."""
    signature, constexprs, attrs = {}, {}, {}
    for i, (name, a) in enumerate(args.items()):
        signature[name], const = describe(a)
        if signature[name] == "constexpr":
            constexprs[(i,)] = const
        elif isinstance(a, tuple) and a[0] in ("ptr", "int16"):
            attrs[(i,)] = [["tt.divisibility", 16]]
        elif isinstance(a, tuple) and a[0] == "ptrs":
            for j in range(len(a) - 1):
                attrs[(i, j)] = [["tt.divisibility", 16]]
    source = GluonASTSource(kernel, signature=signature, constexprs=constexprs, attrs=attrs)
    # fused multiply-adds by name, as in run.py: triton 3.10 stops making them by default
    options = {"num_warps": num_warps, "enable_fp_fusion": True}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def describe(a):
    if isinstance(a, tuple) and a and a[0] == "desc":
        layout = variants.layout_of(a[2], getattr(gl, variants.LONG[a[1]]))
        return f"tensordesc<{a[1]}{list(a[2])},{layout!r}>", None
    if isinstance(a, tuple) and a and a[0] == "ptr":
        return f"*{a[1]}", None
    if isinstance(a, tuple) and a and a[0] == "ptrs":
        return tuple(f"*{t}" for t in a[1:]), None
    if isinstance(a, tuple) and a and a[0] in ("int", "int16"):
        return "i32", None
    if isinstance(a, tuple) and a and a[0] == "float":
        return "fp32", None
    return "constexpr", a


def inspect(compiled) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        cubin, ptx = Path(folder) / "k.cubin", Path(folder) / "k.ptx"
        cubin.write_bytes(compiled.asm["cubin"])
        ptx.write_text(compiled.asm["ptx"])
        usage = subprocess.run(
            [BIN / "cuobjdump", "--dump-resource-usage", cubin], capture_output=True, text=True
        ).stdout
        sass = subprocess.run([BIN / "cuobjdump", "-sass", cubin], capture_output=True, text=True).stdout
        ptxas = subprocess.run(
            [get_ptxas(90).path, "-v", "--gpu-name=sm_90a", ptx, "-o", Path(folder) / "o"],
            capture_output=True,
            text=True,
        )
    log = ptxas.stdout + ptxas.stderr
    if ptxas.returncode:
        raise RuntimeError(f"ptxas failed, so that nothing is known of C75: {log[:500]}")
    found = {k: int(v) for k, v in re.findall(r"\b(REG|STACK|LOCAL|SHARED):(\d+)", usage)}
    spill = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    body = hot_loop(sass)
    count = lambda text, op: len(re.findall(rf"\b{op}\b", text))
    return {
        "regs": max_register(sass),
        "launch_regs": found.get("REG"),
        "spill": (int(spill[1]), int(spill[2])) if spill else None,
        "stack": found.get("STACK"),
        "smem": compiled.metadata.shared,
        "c75": sorted(set(re.findall(r"C75\d\d", log))),
        "hgmma": count(sass, "HGMMA"),
        "loop": {
            "all": len(body.splitlines()),
            "hgmma": count(body, "HGMMA"),
            **{
                op.lower(): count(body, op)
                for op in (
                    "MUFU",
                    "FFMA",
                    "FADD",
                    "FMUL",
                    "FMNMX",
                    "FSETP",
                    "FSEL",
                    "SEL",
                    "F2FP",
                    "SHFL",
                    "LDS",
                    "STS",
                    "LDG",
                    "STG",
                    "BAR",
                    "SYNCS",
                    "WARPGROUP",
                )
            },
        },
        "sass": sass,
        "ttgir": compiled.asm["ttgir"],
    }


def max_register(sass: str) -> int:
    return 1 + max((int(r) for r in re.findall(r"\bR(\d+)\b", sass)), default=0)


def instructions(sass: str) -> list[tuple[int, str]]:
    return [(int(a, 16), t) for a, t in re.findall(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.*?);", sass, re.M)]


def hot_loop(sass: str) -> str:
    """The shortest backward branch over at least an eighth of all WGMMA and the fold: one consumer's loop."""
    code = instructions(sass)
    total = sum("HGMMA" in t for _, t in code)
    at = {a for a, _ in code}
    best = None
    for address, text in code:
        jump = re.search(r"\bBRA\b.*0x([0-9a-f]+)", text)
        target = int(jump[1], 16) if jump else address
        if target >= address or target not in at:
            continue
        body = [t for a, t in code if target <= a <= address]
        if 8 * sum("HGMMA" in t for t in body) < total or not any("MUFU" in t or "FMNMX" in t for t in body):
            continue
        if best is None or len(body) < len(best):
            best = body
    return "\n".join(best or [])


def layout_complaints(args: dict, ttgir: str) -> list[str]:
    if "STEP" not in args or "G" not in args:
        return []
    return layouts.check(ttgir, args["BM"], args["BK"], args["G"], resolve.columns)


def main() -> int:
    resolve.check_winners("cpu")
    parser = argparse.ArgumentParser()
    parser.add_argument("--prototypes", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--dump", type=Path, help="folder for SASS and TTGIR")
    options = parser.parse_args()
    todo = variants.everything()
    if options.prototypes:
        todo.update(variants.prototypes(lambda name: load(options.prototypes, name)))
    bad = 0
    for name, (kernel, args) in todo.items():
        if options.only and options.only not in name:
            continue
        r = inspect(compile_one(kernel, args))
        if options.dump:
            options.dump.mkdir(parents=True, exist_ok=True)
            (options.dump / f"{name}.sass").write_text(r["sass"])
            (options.dump / f"{name}.ttgir").write_text(r["ttgir"])
        bad += bool(r["c75"]) or bool(r["spill"] and any(r["spill"]))
        for complaint in layout_complaints(args, r["ttgir"]):
            bad += 1
            print(f"{name:28s} {complaint}")
        loop = " ".join(f"{k}={v}" for k, v in r["loop"].items() if v)
        print(
            f"{name:28s} regs {r['regs']:3d} spill {r['spill']} stack {r['stack']} smem {r['smem']}"
            f" {' '.join(r['c75']) or 'no C75'} HGMMA {r['hgmma']}\n{'':28s} loop: {loop}"
        )
    return bad


if __name__ == "__main__":
    sys.exit(main())
