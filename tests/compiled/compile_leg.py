"""Compiles what the Triton executor would launch, for GPUs that are not here, and reads the compiler's report.

record     a call of the public interface on tensors without data -> the Programs that reach an executor
kernels    a Program -> the kernels of its launches, on a machine of that kind
measure    a kernel -> registers, spills, shared memory, marks of miscompilation; kept by a hash
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import io
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import marks
import torch
import triton
from torch import Tensor
from triton import knobs
from triton.backends.compiler import GPUTarget

from tilefold.execute import operator, select
from tilefold.execute import triton as loops
from tilefold.execute.hopper import columns_plan
from tilefold.execute.hopper import plan as hopper
from tilefold.execute.triton import chunks, generate, lists, plan
from tilefold.execute.triton.launch import Kernel
from tilefold.machine import known
from tilefold.program import Program

HERE = Path(__file__).resolve().parent
TABLE = HERE / "table.json"
ADDS_A_FENCE = "(C7519)"  # the one warning of its kind that does not serialise: warpgroup.arrive is injected
VERSION = triton.__version__.split("+")[0]


@dataclass(frozen=True)
class Target:
    machine: Any
    gpu: GPUTarget
    matrix: int  # as select.Limits

    @property
    def limits(self) -> select.Limits:
        m = self.machine
        return select.Limits(m.units, m.shared, m.registers_per_thread, m.warp, self.matrix)


TARGETS = {
    "sm_80": Target(known.A100, GPUTarget("cuda", 80, 32), 8),
    "sm_90": Target(known.H200, GPUTarget("cuda", 90, 32), 9),
    "sm_100": Target(known.B200, GPUTarget("cuda", 100, 32), 10),
    "gfx942": Target(known.MI300X, GPUTarget("hip", "gfx942", 64), 8),
}


@dataclass(frozen=True)
class Call:
    """What reaches an executor."""

    program: Program
    operands: tuple[Tensor, ...]
    batch: tuple[int, ...]
    n: int
    k: int
    dtypes: tuple[torch.dtype, ...]


def record(make: Callable[[], Any]) -> list[Call]:
    calls: list[Call] = []

    def run(
        operands: Sequence[Tensor], program: str, sizes: Sequence[int], dtypes: str, read: tuple[bool, ...] = ()
    ) -> list[Tensor]:
        *batch, n, k = sizes
        calls.append(Call(Program.parse(program), tuple(operands), tuple(batch), n, k, operator.named_types(dtypes)))
        return operator._shapes(operands, program, sizes, dtypes)

    # torch knows no autocast for tensors without data
    with mock.patch.object(operator, "_run", run), mock.patch.object(torch, "is_autocast_enabled", lambda *_: False):
        make()
    return calls


@dataclass(frozen=True)
class Made:
    """A kernel of a launch, and what selection counted on."""

    name: str
    kernel: Kernel
    tiles: select.Tiles | hopper.Tiles | columns_plan.Tiles | None = None
    need: select.Need | None = None
    products: tuple[int, ...] = ()  # bytes of an element of each pair that is multiplied in its own type


@contextlib.contextmanager
def on(target: Target, tf32: bool) -> Iterator[None]:
    """Plans inside are those for a machine of that kind."""
    for kept in (plan._plans, lists._plans, chunks._plans):
        kept.clear()
    with (
        mock.patch.object(select, "limits_of", lambda *_: target.limits),
        mock.patch.object(plan, "tf32_allowed", lambda: tf32),
    ):
        yield
    for kept in (plan._plans, lists._plans, chunks._plans):
        kept.clear()


def kernels(call: Call, target: Target, tf32: bool) -> list[Made]:
    """The kernels of a call, as `execute.triton.run` would choose them."""
    needs: list[select.Need | None] = []
    planned: list[tuple[plan.Piece, Any]] = []
    chosen, plan_piece = select.tiles, plan.plan_piece

    def tiles(need: select.Need, *rest: Any) -> select.Tiles:
        needs[-1] = need
        return chosen(need, *rest)

    def keep(piece: plan.Piece, *rest: Any, **options: Any) -> Any:
        needs.append(None)
        planned.append((piece, plan_piece(piece, *rest, **options)))
        return planned[-1][1]

    with (
        on(target, tf32),
        mock.patch.object(select, "tiles", tiles),
        mock.patch.object(plan, "plan_piece", keep),
    ):
        if plan.long_list(call.program.outputs[0]):
            return _long_list(call, target, tf32)
        launches, _ = loops._launches(call.program, call.operands, call.batch, call.n, call.k, call.dtypes)
    made: dict[str, Made] = {}
    for launch in launches:
        if isinstance(launch, columns_plan.Launch):
            made["both"] = Made("both", launch.kernel, launch.tiles)
            for part, extra in (("ranges", launch.ranges), ("finish", launch.finish)):
                if extra is not None:
                    made[f"both, {part}"] = Made(f"both, {part}", extra[0])
    for (piece, launch), need in zip(planned, needs, strict=True):
        tile = piece.program.outputs[0].axis == "tile"
        name = ("tiles" if tile else "columns" if piece.flipped else "rows") + (" summed" if piece.summed else "")
        name += ", what a mask leaves" if name in made else ""
        operands = [call.operands[i] for i in piece.operands]
        made[name] = Made(name, launch.kernel, launch.tiles, need, _products(piece.program, operands))
        if launch.merge is not None:
            made[f"{name}, merge"] = Made(f"{name}, merge", launch.merge[0])
        if getattr(launch, "resolve", None) is not None:
            made[f"{name}, resolve"] = Made(f"{name}, resolve", launch.resolve[1])
    return list(made.values())


def _long_list(call: Call, target: Target, tf32: bool) -> list[Made]:
    """The kernels of `lists.run_long_list`."""
    program, operands, sizes = call.program, call.operands, (call.batch, call.n, call.k)
    products = _products(program, operands)
    if lists.why_not_threshold(program, operands, *sizes) is None:
        p = lists._plan(program, operands, *sizes)
        assert not isinstance(p, str)
        made = []
        for part in ("sample", "tau", "append", "select", "rescore", "sort"):
            kernel = getattr(p, part)
            scores = part in ("sample", "append", "rescore")
            if kernel is not None:
                tiles = p.scores.tiles if scores else None
                made.append(Made(part, _portable(kernel, target), tiles, None, products if scores else ()))
        return made
    (piece,) = plan.pieces(lists.scores_of(program), ((),))
    wide = torch.float64 if any(t.dtype == torch.float64 for t in operands) else torch.float32
    shapes = [[((*call.batch, call.n, call.k), wide)]]
    chunk = (0, call.n, 0, call.k)
    launch = plan.plan_piece(piece, operands, *sizes, [[0]], shapes, target.limits, tf32, chunk)
    return [Made("chunk of scores", launch.kernel, launch.tiles, None, products)]


def _products(program: Program, operands: Sequence[Tensor]) -> tuple[int, ...]:
    found = [(leaf.rows, leaf.cols) for leaf in program.leaves()]
    found += [(o.payload, o.payload) for o in program.outputs if o.payload is not None]
    return tuple(operands[a].element_size() for a, b in found if operands[a].dtype == operands[b].dtype)


def _portable(kernel: Kernel, target: Target) -> Kernel:
    """The kernel without inline assembler, which an executor on an AMD GPU leaves out (it asks torch.version.hip)."""
    names = kernel.fn.arg_names[len(kernel.signature) :]
    if target.gpu.backend == "cuda" or "ASM" not in names:
        return kernel
    constants = tuple(False if name == "ASM" else c for name, c in zip(names, kernel.constants, strict=True))
    options = kernel.options
    return Kernel(kernel.fn, kernel.signature, kernel.aligned, constants, options["num_warps"], options["num_stages"])


def made(case: Any, target: str) -> dict[str, Made]:
    """All kernels of a case, by the names of their rows in the table."""
    found: dict[str, Made] = {}
    for number, call in enumerate(record(case.make)):
        for m in kernels(call, TARGETS[target], case.tf32):
            found[f"{target} | {case.name} | {number} {m.name}"] = m
    return found


def described(m: Made) -> str:
    """The numbers of the tiles; kernels without tiles are known by their warps."""
    t, o = m.tiles, m.kernel.options
    tail = f"{o['num_warps']} warps, {o['num_stages']} stages" + (
        f", {o['maxnreg']} registers" if "maxnreg" in o else ""
    )
    if t is None:
        return tail
    if isinstance(t, hopper.Tiles):
        return f"{t.groups} x {t.bm} x {t.bk}, warps specialised, {t.stages} stages"
    if isinstance(t, columns_plan.Tiles):
        return f"{t.m} x 2 x 64, warps specialised, {t.stages} stages"
    return f"{t.bn} x {t.bk} x {'all' if t.resident else t.bd}, {tail}"


def expected(m: Made, target: str) -> int | None:
    """Registers of a thread that selection counted on, where it decides by them."""
    if (
        m.need is None
        or not isinstance(m.tiles, select.Tiles)
        or not m.tiles.resident
        or m.need.slow_product
        or target == "gfx942"
    ):
        return None
    return min(255, select.registers(m.need, m.tiles, TARGETS[target].limits))


def blocks_counted(m: Made, target: str) -> int:
    """Blocks that share a unit, as selection counts them; 0 where it does not decide by that."""
    if expected(m, target) is None:
        return 0
    assert m.need is not None and isinstance(m.tiles, select.Tiles)
    found = select.clocks(m.need, m.tiles, TARGETS[target].limits)
    return 0 if found is None else found[-1]


def blocks_held(m: Made, target: str, report: Report) -> int:
    """And as the compiler's registers (a warp takes them by eights) allow."""
    machine = TARGETS[target].machine
    threads = int(m.kernel.options["num_warps"]) * machine.warp
    return int(machine.registers // (threads * (-(-report.registers // 8) * 8)))


@dataclass(frozen=True)
class Report:
    """What the compiler made. Spills in bytes of a thread's stack (AMD: spilled vector registers)."""

    registers: int
    spills: int
    shared: int
    wgmma: int = 0  # warp-group products, in machine code
    serialised: tuple[str, ...] = ()  # warnings of ptxas that it runs them one after another
    miscompiled: tuple[str, ...] = ()
    looped: int = 0  # loads and stores of spilled registers inside of loops


def _checker() -> str:
    return "".join(map(inspect.getsource, (compile_now, _looped, _amd, marks)))


def measure(kernel: Kernel, target: Target) -> Report:
    """Compiles, unless this very source was compiled for this target by this Triton before."""
    source = kernel.source()
    parts = (source.hash(), str(target.gpu), json.dumps(kernel.options, sort_keys=True), triton.__version__, _checker())
    path = generate.cache_directory() / "compiled" / f"{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:32]}.json"
    with contextlib.suppress(OSError, ValueError, TypeError):
        return _restored(json.loads(path.read_text()))
    report = compile_now(source, target.gpu, kernel.options)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as f:
            json.dump(dataclasses.asdict(report), f)
        os.replace(f.name, path)
    return report


def _restored(fields: dict[str, Any]) -> Report:
    return Report(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})


def compile_now(source: Any, gpu: GPUTarget, options: dict[str, Any]) -> Report:
    log = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, knobs.cache.scope(), knobs.compilation.scope(), knobs.nvidia.scope():
        knobs.cache.dir = folder
        knobs.nvidia.dump_ptxas_log = True
        knobs.compilation.always_compile = True
        with contextlib.redirect_stdout(log):
            compiled = triton.compile(source, target=gpu, options=options)
        shared = int(compiled.metadata.shared)
        if gpu.backend == "hip":
            return _amd(compiled.asm["amdgcn"], shared)
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        usage = _cuobjdump("--dump-resource-usage", cubin)
        found = re.search(r"Function [^:]+:\s*REG:(\d+) STACK:(\d+) .*?LOCAL:(\d+)", usage)
        assert found, usage
        registers, stack, local = map(int, found.groups())
        if gpu.arch != 90:
            return Report(registers, stack + local, shared)
        said = log.getvalue()
        if "Compiling entry function" not in said:  # a Triton that does not pass the log on
            said = _ptxas(compiled.asm["ptx"], folder)
        assert "Compiling entry function" in said, said
        warnings = tuple(line.strip() for line in said.splitlines() if "C75" in line and ADDS_A_FENCE not in line)
        sass = _cuobjdump("-sass", cubin)
        wgmma = len(re.findall(r"\bHGMMA\b", sass))
        marked = tuple(marks.miscompiled(compiled.asm["ttgir"]))
        return Report(registers, stack + local, shared, wgmma, warnings, marked, _looped(sass))


def _looped(sass: str) -> int:
    """Accesses to the stack between a backward branch and its target."""
    lines = [(int(a, 16), text) for a, text in re.findall(r"/\*([0-9a-f]{4,5})\*/\s+(.*?);", sass)]
    loops = []
    for at, text in lines:
        branch = re.search(r"\bBRA\S*\s+(?:.*,\s*)?`?\(?0x([0-9a-f]+)", text)
        if branch and int(branch.group(1), 16) < at:
            loops.append((int(branch.group(1), 16), at))
    return sum(any(a <= at <= b for a, b in loops) for at, text in lines if re.search(r"\b(LDL|STL)\b", text))


def _amd(text: str, shared: int) -> Report:
    def number(name: str) -> int:
        return max((int(x) for x in re.findall(rf"\.{name}:\s+(\d+)", text)), default=0)

    return Report(number("vgpr_count"), number("vgpr_spill_count"), shared)


@functools.lru_cache(maxsize=1)
def _tools() -> Path:
    return Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def _cuobjdump(option: str, file: Path) -> str:
    return subprocess.run([_tools() / "cuobjdump", option, file], capture_output=True, text=True, check=True).stdout


def _ptxas(ptx: str, folder: str) -> str:
    from triton.backends.nvidia.compiler import get_ptxas

    file = Path(folder) / "kernel.ptx"
    file.write_text(ptx)
    command = [get_ptxas(90).path, "-v", "--gpu-name=sm_90a", file, "-o", Path(folder) / "again.cubin"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr
