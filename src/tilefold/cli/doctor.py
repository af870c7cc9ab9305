"""`tilefold doctor`: what is here, which executor would run, why not the others, and what is broken.

`examine()` asks the machine and returns plain facts; `judge()` turns facts into lines and needs no machine, so that
tests can show it one they do not have.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import sys
from dataclasses import asdict, dataclass, field
from typing import Literal

import click

OLDEST_TORCH = (2, 10)
OLDEST_TRITON = (3, 6)
BACKENDS = ("auto", "eager", "triton")  # of execute/backend.py, which needs a torch that works

Mark = Literal["ok", "note", "broken"]


@dataclass
class Gpu:
    name: str
    arch: str  # "sm_90", "gfx942"
    memory_gib: float
    why_not_triton: str = ""
    error: str = ""  # what a small computation on it raised


@dataclass
class Facts:
    """What was found. An `*_error` is the text of the exception that importing raised."""

    python: str
    system: str
    cores: int
    torch: str = ""
    torch_error: str = ""
    torch_build: str = ""  # "cpu", "cuda 13.0", "rocm 6.4"
    other_device: str = ""  # "mps", "xpu"
    triton: str = ""
    triton_error: str = ""
    numpy: str = ""
    driver: bool = False  # an NVIDIA driver answers by name
    gpus: list[Gpu] = field(default_factory=list)
    backend: str = ""  # TILEFOLD_BACKEND
    interpret: bool = False  # TRITON_INTERPRET
    check_error: str = ""  # what a small fold on the CPU, or its result, had wrong


@dataclass
class Line:
    mark: Mark
    what: str
    text: str
    advice: str = ""


def version(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: "2.13.0+cpu" is (2, 13, 0)."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")


def _installed(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def examine() -> Facts:
    facts = Facts(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        cores=os.cpu_count() or 1,
        numpy=_installed("numpy"),
        driver=shutil.which("nvidia-smi") is not None,
        backend=os.environ.get("TILEFOLD_BACKEND", ""),
        interpret=os.environ.get("TRITON_INTERPRET", "") == "1",
    )
    try:
        import torch
    except Exception as error:  # a broken install can raise anything, and this is the place to say it
        facts.torch, facts.torch_error = _installed("torch"), _first_line(error)
        return facts
    facts.torch = str(torch.__version__)
    hip = getattr(torch.version, "hip", None)
    facts.torch_build = f"rocm {hip}" if hip else f"cuda {torch.version.cuda}" if torch.version.cuda else "cpu"
    if torch.backends.mps.is_available():
        facts.other_device = "mps"
    elif hasattr(torch, "xpu") and torch.xpu.is_available():
        facts.other_device = "xpu"
    if importlib.util.find_spec("triton") is not None:
        facts.triton = _installed("triton") or "unknown version"
        try:
            import triton

            facts.triton = str(triton.__version__)
        except Exception as error:
            facts.triton_error = _first_line(error)
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            arch = properties.gcnArchName.split(":")[0] if hip else f"sm_{properties.major}{properties.minor}"
            gpu = Gpu(properties.name, arch, properties.total_memory / 2**30)
            gpu.why_not_triton = _why_not_triton(index)
            gpu.error = check_fold(f"cuda:{index}")
            facts.gpus.append(gpu)
    if version(facts.torch) >= OLDEST_TORCH:
        facts.check_error = check_fold("cpu")
    return facts


def _why_not_triton(index: int) -> str:
    try:
        from tilefold.execute.backend import why_not_triton

        return why_not_triton("cuda", index) or ""
    except Exception as error:
        return _first_line(error)


def check_fold(device: str) -> str:
    """Run one small fold, forward and backward, on the device; the text of what went wrong, or nothing."""
    try:
        import torch

        import tilefold as tf

        generator = torch.Generator().manual_seed(0)
        x, y = (torch.randn(n, 20, generator=generator).to(device) for n in (70, 130))
        x.requires_grad_()
        got = tf.scores(x, y).logsumexp(-1)
        (slope,) = torch.autograd.grad(got.sum(), x)
        wide = x.detach().double().requires_grad_()
        want = torch.logsumexp(wide @ y.double().mT, -1)
        (wide_slope,) = torch.autograd.grad(want.sum(), wide)
        off = max(float((a.detach() - b).abs().max()) for a, b in ((got, want.detach()), (slope, wide_slope)))
        # float32 against float64 at |score| < 30: three digits above its rounding
        return "" if off < 1e-3 else f"a small log-sum-exp is off by {off:.1e}"
    except Exception as error:
        return _first_line(error)


def judge(facts: Facts) -> list[Line]:
    lines = [Line("ok", "python", f"{facts.python} on {facts.system}, {facts.cores} cores")]
    if not facts.torch or facts.torch_error:
        text = (
            f"{facts.torch} does not import ({facts.torch_error})"
            if facts.torch
            else f"not found ({facts.torch_error})"
        )
        return [*lines, Line("broken", "torch", text, f"pip install 'torch>={_dotted(OLDEST_TORCH)}'")]
    if version(facts.torch) < OLDEST_TORCH:
        text = f"{facts.torch} is older than {_dotted(OLDEST_TORCH)}"
        lines.append(Line("broken", "torch", text, f"pip install -U 'torch>={_dotted(OLDEST_TORCH)}'"))
    else:
        lines.append(Line("ok", "torch", f"{facts.torch}, built for {facts.torch_build}"))
    lines.append(_triton(facts))
    lines.extend(_gpus(facts))
    lines.extend(executors(facts))
    if facts.backend and facts.backend not in BACKENDS:
        text = f"TILEFOLD_BACKEND={facts.backend} is no executor"
        lines.append(Line("broken", "environment", text, f"set it to one of {', '.join(BACKENDS)}, or unset it"))
    if facts.check_error:
        advice = "a working install passes this: reinstall tilefold and torch, or report it with this page"
        lines.append(Line("broken", "check", facts.check_error, advice))
    elif version(facts.torch) >= OLDEST_TORCH:
        lines.append(Line("ok", "check", "a small log-sum-exp and its gradient agree with float64"))
    return lines


def _triton(facts: Facts) -> Line:
    needed = bool(facts.gpus)
    advice = f"pip install 'triton>={_dotted(OLDEST_TRITON)}' (a CUDA build of torch brings its own)"
    if not facts.triton:
        text = "not found" if needed else "not found; only a GPU, or the interpreted and compiled tests, need it"
        return Line("broken" if needed else "ok", "triton", text, advice if needed else "")
    if facts.triton_error:
        text = f"{facts.triton} does not import ({facts.triton_error})"
        return Line("broken" if needed else "note", "triton", text, advice)
    if version(facts.triton) < OLDEST_TRITON:
        text = f"{facts.triton} is older than {_dotted(OLDEST_TRITON)}"
        return Line("broken" if needed else "note", "triton", text, advice)
    if facts.interpret and version(facts.triton) < (3, 7) and version(facts.numpy) >= (2, 4):
        text = f"the interpreter of {facts.triton} fails beside NumPy {facts.numpy}"
        return Line("broken", "triton", text, "pip install 'numpy<2.4', or triton 3.7")
    return Line("ok", "triton", facts.triton)


def _gpus(facts: Facts) -> list[Line]:
    if not facts.gpus:
        if facts.driver and facts.torch_build == "cpu":
            text = "an NVIDIA driver is here, but this torch is built for the CPU"
            return [
                Line("broken", "gpu", text, "install a CUDA build of torch, or TILEFOLD_BACKEND=eager to mean the CPU")
            ]
        if facts.driver:
            text = f"an NVIDIA driver is here, but torch ({facts.torch_build}) reaches no GPU"
            return [Line("broken", "gpu", text, "check nvidia-smi and CUDA_VISIBLE_DEVICES; the driver may be too old")]
        if facts.other_device:
            return [Line("ok", "gpu", f"{facts.other_device}; tilefold has no loops of its own there")]
        return [Line("ok", "gpu", "none; everything runs on the CPU")]
    lines = []
    for index, gpu in enumerate(facts.gpus):
        text = f"cuda:{index} {gpu.name}, {gpu.arch}, {gpu.memory_gib:.0f} GiB"
        if gpu.error:
            lines.append(
                Line(
                    "broken",
                    "gpu",
                    f"{text}: {gpu.error}",
                    "TILEFOLD_BACKEND=eager avoids the kernels; please report it",
                )
            )
        else:
            lines.append(Line("ok", "gpu", text))
    return lines


def executors(facts: Facts) -> list[Line]:
    """Which executor would run on which device, and why not the other."""
    triton_ok = bool(facts.triton) and not facts.triton_error and version(facts.triton) >= OLDEST_TRITON
    lines = []
    for index, gpu in enumerate(facts.gpus):
        if facts.backend == "eager":
            why_not = "TILEFOLD_BACKEND=eager"
        else:
            why_not = gpu.why_not_triton or ("" if triton_ok else "the triton that is here is not usable")
        text = f"eager on cuda:{index}; not triton: {why_not}" if why_not else f"triton on cuda:{index}"
        lines.append(Line("note" if why_not else "ok", "executor", text))
    if facts.backend == "triton" and not facts.gpus and not facts.interpret:
        text = "TILEFOLD_BACKEND=triton, but there is no GPU"
        lines.append(Line("broken", "executor", text, "unset it, or set TILEFOLD_BACKEND=eager"))
    elif facts.other_device:
        text = f"eager on {facts.other_device} and on the CPU; not triton: its loops need CUDA or ROCm"
        lines.append(Line("ok", "executor", text))
    else:
        lines.append(Line("ok", "executor", "eager on the CPU" + ("" if facts.gpus else "; not triton: no GPU")))
    return lines


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


STYLE: dict[Mark, str] = {"ok": "green", "note": "yellow", "broken": "red"}


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print facts and findings as JSON.")
def command(as_json: bool) -> None:
    """Say what was found here, which executor would run and why not the others, and what is broken."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    facts = examine()
    lines = judge(facts)
    if as_json:
        click.echo(json.dumps({"facts": asdict(facts), "findings": [asdict(line) for line in lines]}, indent=2))
    else:
        table = Table(box=None, show_header=False, pad_edge=False)
        for line in lines:
            mark = f"[{STYLE[line.mark]}]{line.mark}[/]"
            advice = f"\n[bold]→ {escape(line.advice)}[/]" if line.advice else ""
            table.add_row(mark, line.what, escape(line.text) + advice)
        Console().print(table)
    sys.exit(1 if any(line.mark == "broken" for line in lines) else 0)
