"""The mark of a miscompilation in Triton's GPU IR: the transposed accumulator of a product as operand of another.

`tl.dot(tl.trans(acc), x)`, acc the result of a warp-group product, gives wrong numbers on sm_90 in Triton 3.4.0 to
3.7.0. The operand then has a #linear layout, or comes from tt.trans of something computed from a product. A #linear
layout of a loaded tile, or of a reshape in a reduction, is harmless: what counts flows from a product into an operand.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

PRODUCTS = ("ttng.warp_group_dot", "tt.dot", "tt.dot_scaled", "ttng.tc_gen5_mma", "ttng.tc_gen5_mma_scaled")
# what moves or converts a tensor and computes nothing from it
MOVES = (
    "ttg.convert_layout",
    "ttg.local_alloc",
    "ttg.local_load",
    "ttg.memdesc_trans",
    "ttg.memdesc_index",
    "ttg.memdesc_subview",
    "ttg.memdesc_reshape",
    "ttng.warp_group_dot_wait",
    "tt.trans",
    "tt.fp_to_fp",
    "arith.truncf",
    "arith.extf",
    "arith.bitcast",
    "tt.bitcast",
    "carried",
)
FROM_MEMORY = ("tt.load", "tt.descriptor_load", "ttg.async_copy_global_to_local", "ttng.async_tma_copy_global_to_local")

_DEFINED = re.compile(r"^\s*%([\w$.-]+)(?::(\d+))? = \"?([\w.]+)\"?")
_USED = re.compile(r"%([\w$.-]+(?:#\d+)?)")
_LINEAR = re.compile(r"#linear\d*\b|#ttg\.linear<")
_LOOP = re.compile(r"%([\w$.-]+) = %([\w$.-]+(?:#\d+)?)")


@dataclass
class _Value:
    op: str
    text: str
    uses: list[int] = field(default_factory=list)


class _Flow:
    """Values and what each is made of, from the printed IR; names line by line, as sibling regions use a name again."""

    def __init__(self, ttgir: str) -> None:
        self.values: list[_Value] = []
        self.products: list[tuple[str, list[int]]] = []  # (line, operands of the product, without its accumulator)
        self._names: dict[str, int] = {}
        regions: list[tuple[list[int], list[int]]] = []  # open ones: carried arguments, and results that a yield gives
        for line in ttgir.splitlines():
            text = line.split(" loc(")[0]
            found = _DEFINED.match(text)
            results: list[int] = []
            carried: list[int] = []
            if found:
                name, count, op = found.groups()
                body = text.split("=", 1)[1]
                uses = self._resolve(body)
                if op in PRODUCTS:
                    self.products.append((text.strip(), self._resolve(body.split("{")[0])[:2]))
                if op == "scf.for":
                    head = body.split("iter_args(")[-1].split(") ->")[0] if "iter_args(" in body else ""
                    carried = [
                        self._add("carried", a.group(1), self._resolve("%" + a.group(2)), a.group(1))
                        for a in _LOOP.finditer(head)
                    ]
                if op.startswith("scf."):
                    # the line names the layouts of all results; a result's own is on the line of what the region yields
                    results = [self._add("carried", "", [], f"{name}#{i}") for i in range(int(count or 1))]
                else:
                    results = [self._add(op, text, uses, f"{name}#{i}") for i in range(int(count or 1))]
                self._names[name] = results[0]
            elif text.strip().startswith(PRODUCTS):
                self.products.append((text.strip(), self._resolve(text.split("{")[0])[:2]))
            if text.strip().startswith("scf.yield") and regions:
                given = self._resolve(text.split(" : ")[0])
                for side in regions[-1]:
                    for target, value in zip(side, given):
                        self.values[target].uses.append(value)
            opened = text.rstrip().endswith("{")
            if text.strip().startswith("}") and regions:
                closed = regions.pop()
                if opened:  # } else {
                    regions.append(closed)
            elif opened:
                regions.append((carried, results))

    def _add(self, op: str, text: str, uses: list[int], name: str) -> int:
        self.values.append(_Value(op, text, list(uses)))
        self._names[name] = len(self.values) - 1
        return self._names[name]

    def _resolve(self, text: str) -> list[int]:
        return [self._names[n] for n in _USED.findall(text) if n in self._names]

    def behind(self, start: list[int], through: tuple[str, ...] | None) -> list[_Value]:
        """What a value is made of: through these operations only, or through all but loads and products."""
        seen: set[int] = set()
        queue = list(start)
        while queue:
            i = queue.pop()
            if i in seen:
                continue
            seen.add(i)
            op = self.values[i].op
            if op in through if through is not None else op not in (*FROM_MEMORY, *PRODUCTS):
                queue += self.values[i].uses
        return [self.values[i] for i in sorted(seen)]


def miscompiled(ttgir: str) -> list[str]:
    """The products with such an operand, one line each."""
    flow = _Flow(ttgir)

    def from_product(v: _Value) -> bool:
        return any(u.op in PRODUCTS for u in flow.behind(v.uses, None))

    bad = []
    for line, operands in flow.products:
        suspects = [v for v in flow.behind(operands, MOVES) if _LINEAR.search(v.text)]
        suspects += [v for v in flow.behind(operands, None) if v.op == "tt.trans"]
        if any(map(from_product, suspects)):
            bad.append(line)
    return bad
