"""Compiles a kernel for given argument types and launches it, without the specialisation that JITFunction.run does on every call.

What is known of an argument is stated: pointers and strides that are multiples of 16 bytes are marked, sizes never are, so that another
size never compiles again. In the interpreter the kernel is called as it is.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.compiler import ASTSource

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

NAMES = {
    torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64", torch.int64: "i64", torch.int32: "i32",
    torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "i8",
}  # fmt: skip


def pointer(dtype: torch.dtype) -> str:
    return "*" + NAMES[dtype]


def operand_types(operands: Sequence[Sequence[Tensor]], strides: Sequence[Sequence[tuple[int, ...]]]) -> list[Any]:
    """Types of arguments that come as two tuples for each kind of operand: pointers, and strides."""
    made: list[Any] = []
    for tensors, own in zip(operands, strides, strict=True):
        made += [tuple(pointer(t.dtype) for t in tensors), tuple(tuple("i64" for _ in s) for s in own)]
    return made


def number_types(floats: Sequence[float], ints: Sequence[int]) -> list[Any]:
    return [tuple("fp32" for _ in floats), tuple("i32" if -(2**31) <= i < 2**31 else "i64" for i in ints)]


class Kernel:
    """A kernel with its constants, for argument types given by signature.

    Args:
        fn: the @triton.jit function; its first parameters are the run-time arguments, the rest constants
        signature: type of each run-time argument; a tuple for a tuple
        aligned: paths (argument, element, ..) of what is a multiple of its number: {(0, 1): 16}
        constants: the values of the other parameters
    """

    ast: type[ASTSource] = ASTSource

    def __init__(self, fn: Any, signature: Sequence[Any], aligned: dict[tuple[int, ...], int], constants: Sequence[Any], warps: int,
                 stages: int, cap: int = 0) -> None:  # fmt: skip
        self.fn, self.signature, self.aligned, self.constants = fn, tuple(signature), aligned, tuple(constants)
        self.options = {"num_warps": warps, "num_stages": stages} | ({"maxnreg": cap} if cap else {})
        self._compiled: dict[int, Any] = {}

    def source(self) -> ASTSource:
        names = self.fn.arg_names
        runtime = len(self.signature)
        signature = dict(zip(names, self.signature, strict=False)) | dict.fromkeys(names[runtime:], "constexpr")
        constants = {(runtime + i,): c for i, c in enumerate(self.constants)}
        constants |= {
            (i,): None for i, t in enumerate(self.signature) if t == "constexpr"
        }  # an argument that is left out
        attrs = {path: [["tt.divisibility", number]] for path, number in self.aligned.items()}
        return self.ast(self.fn, signature=signature, constexprs=constants, attrs=attrs)

    def compile(self, target: Any = None) -> Any:
        # multiply-adds, which later versions of Triton leave out unless asked: error analysis and speed count on them
        options = self.options | {"enable_fp_fusion": True}
        return triton.compile(self.source(), target=target, options=options)

    def __call__(self, grid: int, device: torch.device, args: tuple[Any, ...]) -> None:
        if INTERPRETED:
            self.fn[(grid,)](*args, *self.constants, **self.options)
            return
        index = device.index if device.index is not None else torch.cuda.current_device()
        compiled = self._compiled.get(index)
        if compiled is None:
            with torch.cuda.device(index):
                compiled = self.compile()
                compiled._init_handles()
                self._compiled[index] = compiled
        if index != torch.cuda.current_device():
            with torch.cuda.device(index):
                self._launch(compiled, index, grid, args)
        else:  # entering the device costs, and is rarely needed
            self._launch(compiled, index, grid, args)

    def _launch(self, compiled: Any, index: int, grid: int, args: tuple[Any, ...]) -> None:
        stream = torch._C._cuda_getCurrentRawStream(index)
        function, metadata = compiled.function, compiled.packed_metadata
        compiled.run(grid, 1, 1, stream, function, metadata, None, None, None, *args, *self.constants)


_kernels: dict[Any, Kernel] = {}


def kernel_of(fn: Any, signature: Sequence[Any], marks: dict[tuple[int, ...], int], constants: Sequence[Any], key: Any, warps: int,
              stages: int, cap: int = 0, kind: type[Kernel] = Kernel) -> Kernel:  # fmt: skip
    """The kernel of these types and constants; `key` stands for those constants that are functions."""
    plain = tuple(c for c in constants if not callable(c) or isinstance(c, tl.dtype))
    full = (kind, fn.__name__, key, repr(signature), tuple(sorted(marks.items())), repr(plain), warps, stages, cap)
    made = _kernels.get(full)
    if made is None:
        made = _kernels[full] = kind(fn, signature, marks, constants, warps, stages, cap)
    return made
