"""How well a KL was steered: settling time, overshoot and error, as README.md defines them."""

import numpy as np

BAND = 0.2
"""The KL has settled where it is within this share of its target."""


def settling(kl: np.ndarray, target: float) -> np.ndarray:
    """Returns the first column from which on the KL stays within 20 % of its target.

    Args:
        kl: one row a run, one column a look ``[S, N]``, in nats.
        target: in nats.

    Returns:
        Columns ``[S]``; infinity where it does not stay so for the last fifth of the columns.
    """
    outside = ~(np.abs(kl / target - 1) <= BAND)  # a NaN is outside
    after = kl.shape[1] - np.argmax(outside[:, ::-1], axis=1)
    first = np.where(np.any(outside, axis=1), after, 0)
    return np.where(first <= kl.shape[1] - late(kl).shape[1], first, np.inf)


def overshoot(kl: np.ndarray, target: float) -> np.ndarray:
    """Returns by how much the highest KL of a run is above its target, relative to it, at least 0 ``[S]``."""
    return np.maximum(np.nanmax(kl, axis=1) / target - 1, 0)


def off_target(kl: np.ndarray, target: float) -> np.ndarray:
    """Returns the mean distance of the KL from its target over the last fifth, relative to it ``[S]``."""
    return np.mean(np.abs(late(kl) / target - 1), axis=1)


def late(values: np.ndarray) -> np.ndarray:
    """Returns the last fifth of the columns."""
    return values[:, -max(values.shape[1] // 5, 1) :]
