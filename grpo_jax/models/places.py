"""Where a model's arrays live, as far as the model has to say."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Array


class Places(NamedTuple):
    """Says where arrays live that a model computes; changes no value. As it comes, it says nothing: one device.

    Attributes:
        pin: ``x -> x``, for an array whose leading axis is groups, or tokens group by group; it is applied to what
            layers hand on. ``sharding.pin_groups`` builds it.
        parts: how many parts groups are split into.
        apart: ``(f, weights, groups, dtype) -> f(weights, groups)``, so that devices need nothing of each other while
            they compute f of their groups, with the weights in that dtype. ``sharding.group_by_group`` builds it.
        vocabulary_parts: how many parts the vocabulary is split into, where their number divides it.
    """

    pin: Callable[[Array], Array] = lambda x: x
    parts: int = 1
    apart: Callable[[Callable, Any, Any, Any], Any] = lambda f, weights, groups, dtype: f(weights, groups)
    vocabulary_parts: int = 1


ONE_DEVICE = Places()
"""Nothing is split."""
