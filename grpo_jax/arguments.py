"""What is asked of the parts that others are composed of: that they were built, and not passed as their factories."""

import inspect
from collections.abc import Callable


def check_built(place: str, kind: type, **parts: object) -> None:
    """Raises TypeError where a part is its own factory, or anything else than what the factory builds.

    Args:
        place: the function that was given the parts, for the message.
        kind: what each part has to be.
        **parts: by the names of their arguments; None is no part.
    """
    for field, part in parts.items():
        if part is None or isinstance(part, kind):
            continue
        if callable(part):
            name = _name(part)
            raise TypeError(
                f"{place}: {field} is the function {name}, not the {kind.__name__} that it builds; "
                f"call it: {field}={name}(...)"
            )
        raise TypeError(f"{place}: {field} is {part!r}, not a {kind.__name__}; build one by its factory")


def check_takes(place: str, names: tuple[str, ...], **functions: Callable | None) -> None:
    """Raises TypeError where a function does not take its arguments: so a factory of such functions is found out.

    Args:
        place: the function that was given the functions, for the message.
        names: what stands for each argument.
        **functions: by the names of their arguments; None is no function.
    """
    for field, function in functions.items():
        if function is None:
            continue
        try:
            inspect.signature(function).bind(*names)
        except TypeError:
            name = _name(function)
            raise TypeError(
                f"{place}: {field} is the function {name}, which does not take ({', '.join(names)}); if it builds such "
                f"a function, call it: {field}={name}(...)"
            ) from None


def _name(function: object) -> str:
    return getattr(function, "__name__", type(function).__name__)
