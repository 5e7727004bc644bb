"""Choices by name, each with the options it reads; an option that the choice made does not read is an error."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Choice(NamedTuple):
    """A factory and the options it reads, as field of the configuration -> argument of the factory."""

    factory: Callable
    reads: Mapping[str, str]


def choose(
    place: str,
    name: str,
    table: Mapping[str, Choice],
    options: Mapping[str, Any],
    bound: Mapping[str, Any] | None = None,
) -> Any:
    """Returns what the named choice makes of the options it reads.

    Args:
        place: the field that names the choice, as in "objective.surrogate".
        name: the choice.
        table: the choices.
        options: the section's fields; None takes the factory's default.
        bound: arguments that are no options.

    Raises:
        ValueError: an unknown name, an option without effect, or a value out of range.
    """
    choice = table[known(place, name, table)]
    refuse_idle(place, name, options, table, set(choice.reads))
    given = {argument: options[field] for field, argument in choice.reads.items() if options[field] is not None}
    return choice.factory(**(bound or {}), **given)


def refuse_idle(place: str, name: str, options: Mapping[str, Any], table: Mapping[str, Choice], read: set[str]) -> None:
    """Raises ValueError for an option of some choice in the table that is set but not read by the one made."""
    section = place.split(".")[0]
    for field in sorted({field for choice in table.values() for field in choice.reads} - read):
        if options[field] is not None:
            readers = [other for other, choice in table.items() if field in choice.reads]
            raise ValueError(
                f"{section}.{field}={options[field]!r} has no effect with {place}={name}; leave it out, or choose "
                f"{place} from {', '.join(readers)}"
            )


def require(section: str, name: str, options: Mapping[str, Any], fields: list[str]) -> None:
    """Raises ValueError for an option that a choice cannot do without."""
    for field in fields:
        if options[field] is None:
            raise ValueError(f"{section}.{field} is missing: {name} has no default for it; set --{section}.{field}")


def known(place: str, name: str, table: Mapping[str, Any]) -> str:
    """Returns the name; raises ValueError where the table lacks it."""
    if name not in table:
        raise ValueError(f"{place} is {name!r}; choose one of {', '.join(table)}")
    return name


def named(place: str, name: str, table: Mapping[str, Callable]) -> Callable:
    """Returns what the table has under a name; raises ValueError where it lacks it."""
    return table[known(place, name, table)]
