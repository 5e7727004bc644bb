"""What one execution of a compiled program moves, read from its text with every loop counted as often as it runs."""

import math
import re
from collections import defaultdict
from typing import NamedTuple

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
_BITS = {"pred": 8, "bf16": 16, "f16": 16, "f32": 32, "f64": 64, "c64": 64, "token": 0, "opaque": 0}
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\](\{[^}]*\})?")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
_CHANNEL = re.compile(r"channel_id=(\d+)")
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "after-all"}
_FREE |= {"partition-id", "replica-id", "opt-barrier", "custom-call"}


class Instruction(NamedTuple):
    """One line of a computation.

    Attributes:
        name: what others call it.
        kind: its opcode.
        type: what it returns, as text.
        operands: names of what it reads; the number of a parameter, the value of a constant.
        rest: its attributes, as text.
        root: whether its computation returns it.
    """

    name: str
    kind: str
    type: str
    operands: tuple[str, ...]
    rest: str
    root: bool


class Collective(NamedTuple):
    """A kind of collective over one execution of the program.

    Attributes:
        count: how often it runs.
        sent: bytes that every device sends to others.
        largest: bytes of the largest result on a device.
    """

    count: float
    sent: float
    largest: float


class Traffic(NamedTuple):
    """What one execution moves on each device.

    Attributes:
        memory: bytes between memory and processor.
        collectives: what devices exchange, by kind.
    """

    memory: float
    collectives: dict[str, Collective]


def traffic(text: str, endless: int) -> Traffic:
    """Reads what a compiled program moves.

    Args:
        text: of ``compiled.as_text()``.
        endless: how often a loop runs whose end depends on data: the sampler's, at most its budget of tokens.

    Returns:
        The traffic of each device. Memory counts what every instruction reads and writes after fusion (a slice where
        only a slice is read), so it is an upper estimate where a buffer stays in the chip's own memory.
    """
    computations, entry = parse(text)
    memory, steps = 0.0, defaultdict(list)
    for name, (times, fused) in _executions(computations, entry, endless).items():
        body = computations[name]
        for instruction in body.values():
            kind = instruction.kind.removesuffix("-start")
            if kind in COLLECTIVES:
                exchanged = _Exchange(times, *_exchanged(instruction, body, kind))
                channel = _CHANNEL.search(instruction.rest)
                steps[_kind(kind, name), channel[1] if channel else (name, instruction.name)].append(exchanged)
            if not fused:
                memory += times * _bytes_moved(instruction, body, computations)
    found = defaultdict(list)
    for (kind, _), each in steps.items():
        found[kind].append(min(each))  # one that goes on during other work has a step in every piece of it
    collectives = {
        kind: Collective(sum(x.times for x in each), sum(x.times * x.sent for x in each), max(x.result for x in each))
        for kind, each in sorted(found.items())
    }
    return Traffic(memory, collectives)


class _Exchange(NamedTuple):
    """How often a device takes part in a collective, or a step of one, what it sends and what comes out, in bytes."""

    times: float
    sent: float
    result: float


def parse(text: str) -> tuple[dict[str, dict[str, Instruction]], str]:
    """Returns the instructions of every computation by name, and the name of the one that is called first."""
    computations: dict[str, dict[str, Instruction]] = {}
    entry, current = "", None
    for line in text.splitlines():
        header = _COMPUTATION.match(line)
        if header and " = " not in line.split("(")[0]:
            current = computations.setdefault(header[2], {})
            entry = header[2] if header[1] else entry
            continue
        match = _INSTRUCTION.match(line) if current is not None else None
        if match and current is not None:
            inside, rest = _split(match[4])
            given = match[3] in ("parameter", "constant")
            operands = (inside,) if given else tuple(re.findall(r"%([\w.\-]+)", inside))
            current[match[1]] = Instruction(
                match[1], match[3], match[2], operands, rest, line.lstrip().startswith("ROOT")
            )
    return computations, entry


def size_of(type_: str, *, on_chip: bool = False) -> float:
    """Returns the bytes of all arrays in a type; those that live in the chip's own memory count if ``on_chip``."""
    total = 0.0
    for dtype, shape, layout in _ARRAY.findall(type_):
        if dtype in _BITS or re.fullmatch(r"[suf]\d+\w*", dtype):
            bits = _BITS.get(dtype) or int(re.findall(r"\d+", dtype)[0]) if dtype not in ("token", "opaque") else 0
            if on_chip or "S(1)" not in layout:
                total += bits / 8 * math.prod(int(n) for n in shape.split(",") if n)
    return total


def _split(text: str) -> tuple[str, str]:
    """Splits what follows an opening parenthesis at the one that closes it."""
    depth = 1
    for index, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text[:index], text[index + 1 :]
    return text, ""


def _executions(computations: dict, entry: str, endless: int) -> dict[str, tuple[float, bool]]:
    """Returns how often each computation runs, and whether it is part of a fusion."""
    runs: dict[str, tuple[float, bool]] = {}

    def visit(name: str, times: float, fused: bool) -> None:
        before = runs.get(name, (0.0, fused))[0]
        runs[name] = (before + times, fused)
        for instruction in computations[name].values():
            trips = _trips(instruction, computations) or endless if instruction.kind == "while" else 1
            inside = fused or instruction.kind not in ("while", "conditional", "call", "async-start")
            for called in _called(instruction.rest):
                if called in computations:
                    visit(called, times * trips, inside)

    visit(entry, 1.0, False)
    return runs


def _trips(loop: Instruction, computations: dict) -> int | None:
    """Returns how often a loop runs: as the compiler notes it, or the bound that its condition compares a count with.

    Counts start at 0 and go up by 1, as those of scans and of the compiler's own loops do.
    """
    known = re.search(r'known_trip_count":\{"n":"(\d+)"', loop.rest)
    if known:
        return int(known[1])
    condition = re.search(r"condition=%?([\w.\-]+)", loop.rest)
    body = computations.get(condition[1], {}) if condition else {}
    root = next((x for x in body.values() if x.root), None)
    if root is None or root.kind != "compare" or "direction=LT" not in root.rest:
        return None
    bound = body.get(root.operands[1])
    return int(bound.operands[0]) if bound is not None and bound.kind == "constant" else None


def _called(rest: str) -> list[str]:
    names = re.findall(r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)", rest)
    branches = re.search(r"branch_computations=\{([^}]*)\}", rest)
    return names + (re.findall(r"%?([\w.\-]+)", branches[1]) if branches else [])


def _kind(kind: str, computation: str) -> str:
    """Names a collective; TPUs write a reduce-scatter as a fusion around an all-reduce."""
    return "reduce-scatter" if kind == "all-reduce" and "all-reduce-scatter" in computation else kind


def _exchanged(instruction: Instruction, body: dict[str, Instruction], kind: str) -> tuple[float, float]:
    """Returns the bytes that a device sends in one collective, and those of its result."""
    read = float(sum(size_of(body[name].type, on_chip=True) for name in instruction.operands if name in body))
    devices = _group(instruction.rest)
    others = devices - 1
    sent = {
        "all-gather": read * others,
        "all-reduce": 2 * read * others / devices,
        "collective-permute": read,
    }.get(kind, read * others / devices)
    result = {"all-gather": read * devices, "reduce-scatter": read / devices}.get(kind, read)
    return sent, result


def _group(rest: str) -> int:
    """Returns how many devices take part in a collective, from any of the three ways of writing groups down."""
    counted = re.search(r"replica_groups=\[\d+,(\d+)\]", rest)
    if counted:
        return int(counted[1])
    listed = re.search(r"replica_groups=\{\{([\d,]*)\}", rest)
    if listed:
        return len(listed[1].split(","))
    named = re.search(r"replica_groups=mesh\[([^\]]*)\] ?\{([^}]*)\}", rest)
    if not named:
        return 2  # pairs: a permutation names sources and targets instead
    sizes = dict(re.findall(r"'(\w+)'=(\d+)", named[1]))
    axes = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", named[2])
    return math.prod(int(part or sizes[axis]) for axis, part in axes)


def _bytes_moved(instruction: Instruction, body: dict[str, Instruction], computations: dict) -> float:
    kind = instruction.kind
    if kind in _FREE or kind.endswith("-done"):
        return 0.0
    called = computations.get(_called(instruction.rest)[0], {}) if kind == "fusion" else {}
    under_way = _under_way(called)
    operands = [size_of(_without(body[name].type, under_way)) if name in body else 0.0 for name in instruction.operands]
    if kind in ("dynamic-slice", "gather"):
        return 2 * size_of(instruction.type)
    if kind == "dynamic-update-slice":
        return 2 * operands[1]
    if kind != "fusion":
        return sum(operands) + size_of(instruction.type)
    written = size_of(_without(instruction.type, under_way)) if under_way else _written(instruction, called)
    return sum(_read(index, size, called, computations) for index, size in enumerate(operands)) + written


def _under_way(called: dict[str, Instruction]) -> set[str]:
    """Returns the shapes that a collective reads and writes while a fusion, beside its own work, takes a step of it."""
    steps = [x for x in called.values() if x.kind in COLLECTIVES]
    types = [x.type for x in steps] + [called[name].type for x in steps for name in x.operands if name in called]
    return {f"{dtype}[{shape}]" for type_ in types for dtype, shape, _ in _ARRAY.findall(type_)}


def _without(type_: str, shapes: set[str]) -> str:
    for shape in shapes:
        type_ = type_.replace(shape, "token[]")
    return type_


def _read(index: int, size: float, called: dict[str, Instruction], computations: dict) -> float:
    """Returns what a fusion reads of one operand: slices alone, where it slices it, also in a fusion inside of it."""
    name = next((x.name for x in called.values() if x.kind == "parameter" and x.operands == (str(index),)), None)
    read, same = 0.0, {name}
    for user in called.values():
        given = [place for place, operand in enumerate(user.operands) if operand in same]
        if not given or user.kind == "parameter":
            continue
        if user.kind == "bitcast":
            same.add(user.name)
        elif user.kind in ("dynamic-slice", "gather") and given == [0]:
            read += size_of(user.type)
        elif user.kind == "fusion":
            inside = computations.get(_called(user.rest)[0], {})
            read += sum(_read(place, size, inside, computations) for place in given)
        elif user.kind != "dynamic-update-slice" or given != [0]:
            return size
    return min(read, size)


def _written(instruction: Instruction, called: dict[str, Instruction]) -> float:
    root = next((x for x in called.values() if x.root), None)
    while root is not None and root.kind == "bitcast" and root.operands[0] in called:
        root = called[root.operands[0]]
    if root is not None and root.kind == "dynamic-update-slice" and root.operands[1] in called:
        return size_of(called[root.operands[1]].type, on_chip=True)
    return size_of(instruction.type)
