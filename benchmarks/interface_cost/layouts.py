"""What each lane's registers hold, read from a kernel's TTGIR by linear-layout arithmetic, without GPU or triton.

A layout sends the bits of (register, lane, warp) to coordinates, linearly over xor; it is given by the image of each
bit. check() holds that reshapes and transposes move nothing, that a fold's reduction stays within a thread, and that
part w, member c of a row is the column that resolve.columns says.
"""

import re
from itertools import product

Bases = dict[str, list[tuple[int, ...]]]


def definitions(ttgir: str) -> dict[str, str]:
    return dict(re.findall(r"^(#\w+) = (#ttg\..*)$", ttgir, re.M))


def bases(layout: str, shape: tuple[int, ...]) -> Bases | None:
    """The image of every hardware bit, for a tensor of this shape; None for a layout that is not needed here."""
    if layout.startswith("#ttg.linear"):
        fields = re.findall(r"(register|lane|warp) = (\[.*?\])(?=, \w+ =|\})", layout)
        found = {}
        for kind, text in fields:
            vectors = [tuple(map(int, v.split(", "))) for v in re.findall(r"\[([\d, ]+)\]", text)]
            # a layout made for a larger shape wraps around
            found[kind] = [tuple(c % size for c, size in zip(v, shape)) for v in vectors]
        return found
    if layout.startswith("#ttg.nvidia_mma") and "versionMajor = 3" in layout and len(shape) == 2:
        width = int(re.search(r"instrShape = \[16, (\d+)", layout)[1])
        if "warpsPerCTA = [4, 1]" not in layout:
            return None
        register = [(0, 1), (8, 0)]
        register += [(0, 8 << i) for i in range((min(width, shape[1]) // 8).bit_length() - 1)]
        register += [(0, width << i) for i in range(max(shape[1] // width, 1).bit_length() - 1)]
        register += [(64 << i, 0) for i in range(max(shape[0] // 64, 1).bit_length() - 1)]
        return {"register": register, "lane": [(0, 2), (0, 4), (1, 0), (2, 0), (4, 0)], "warp": [(16, 0), (32, 0)]}
    return None


def flat(coordinates: tuple[int, ...], shape: tuple[int, ...]) -> int:
    index = 0
    for c, size in zip(coordinates, shape):
        index = index * size + c
    return index


def tensor_types(line: str) -> list[tuple[tuple[int, ...], str]]:
    """(shape, layout name) of every plain tensor type in a line."""
    found = re.findall(r"tensor<((?:\d+x)+)\w+, (#\w+)>", line)
    return [(tuple(int(d) for d in dims.split("x") if d), name) for dims, name in found]


def places(layout: Bases):
    """Every (register, lane, warp) with its coordinates."""
    order = ("register", "lane", "warp")
    rank = len(next(v for k in order for v in layout[k]))
    images = {k: [(0,) * rank] for k in order}
    for k in order:
        for basis in layout[k]:
            images[k] += [tuple(a ^ b for a, b in zip(c, basis)) for c in images[k]]
    for (r, a), (l, b), (w, c) in product(*(enumerate(images[k]) for k in order)):
        yield (r, l, w), tuple(x ^ y ^ z for x, y, z in zip(a, b, c))


def check(ttgir: str, BM: int, BK: int, G: int, columns) -> list[str]:
    """Complaints. columns(first, part, BK, G) -> the columns of a part in the order of its members."""
    known, wrong, moves, reductions = definitions(ttgir), [], 0, 0
    score = next((n for n, t in known.items() if "nvidia_mma" in t and f"16, {BK}, 16]" in t), None)
    if score is None:
        return ["no score layout"]
    held = dict(places(bases(known[score], (BM, BK))))
    lines = ttgir.splitlines()
    for line in lines:
        types = tensor_types(line)
        move = re.search(r"tt\.(reshape|trans) .*?(?:order = array<i32: ([\d, ]+)>)?\}? :", line)
        if move and len(types) == 2:
            (shape, a), (new_shape, b) = types
            source, target = bases(known[a], shape), bases(known[b], new_shape)
            if source is None or target is None:
                continue
            moves += 1
            order = [int(d) for d in move[2].split(",")] if move[2] else None
            for kind in ("register", "lane", "warp"):
                before = [tuple(v[d] for d in order) if order else flat(v, shape) for v in source[kind]]
                after = [v if order else flat(v, new_shape) for v in target[kind]]
                if kind == "register":  # registers that repeat others
                    before, after = ([v for v in side if v and any(v if order else [v])] for side in (before, after))
                if before != after:
                    wrong.append(f"{kind} bits change their element: {line.strip()[:100]}")
    for at, line in enumerate(lines):
        if '"tt.reduce"' not in line or "axis = 2" not in line:
            continue
        end = next(t for t in lines[at:] if t.strip().startswith("})"))
        shape, name = tensor_types(end)[0]
        if shape != (BM, 4 * G, BK // (4 * G)):
            continue
        reductions += 1
        layout = bases(known[name], shape)
        if layout is None:
            wrong.append(f"a reduction in an unknown layout: {known[name]}")
            continue
        if any(v[2] for kind in ("lane", "warp") for v in layout[kind]):
            wrong.append("a part is spread over lanes")
        for place, (row, part, member) in places(layout):
            if held[place] != (row, columns(0, part, BK, G)[member]):
                wrong.append(f"place {place} holds {held[place]}, taken for part {part} member {member}")
                break
    if not moves or not reductions:
        wrong.append(f"nothing to check: {moves} moves, {reductions} reductions")
    if len(held) != BM * BK:
        wrong.append("the score layout does not cover the tile")
    return wrong
