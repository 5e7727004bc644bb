"""Floating-point operations of a traced program, loops counted as often as they run."""

import math
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr


def operations(program: Any, endless: int) -> float:
    """Counts the operations of all matrix products, over all devices.

    The compiler's own figure counts the body of a loop once; this one reads the program as it was traced, in which
    each layer, micro-batch and token is a step of a loop of known length. What is recomputed in the backward pass
    counts every time.

    Args:
        program: of ``function.trace(...).jaxpr``.
        endless: how often a loop runs whose end depends on data.

    Returns:
        Multiplications and additions.
    """
    jaxpr = program.jaxpr if isinstance(program, ClosedJaxpr) else program
    total = 0.0
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name == "dot_general":
            contracted = params["dimension_numbers"][0][0]
            left, out = equation.invars[0].aval, equation.outvars[0].aval
            total += 2.0 * math.prod(out.shape) * math.prod(left.shape[axis] for axis in contracted)
            continue
        parts = [operations(part, endless) for part in _parts(params)]
        if name == "cond":
            total += max(parts)
        else:
            total += sum(parts) * (params["length"] if name == "scan" else endless if name == "while" else 1)
    return total


def _parts(params: dict[str, Any]) -> list[Any]:
    found = []
    for value in params.values():
        each = value if isinstance(value, tuple | list) else (value,)
        found += [part for part in each if isinstance(part, ClosedJaxpr | Jaxpr)]
    return found
