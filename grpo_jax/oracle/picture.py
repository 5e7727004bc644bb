"""The figures of certificates, shown by notebooks as they are."""

import functools
import io
from typing import Any


def picture(width: float | int, height: float | int) -> Any:
    """Returns an empty matplotlib Figure that a notebook shows at the end of a cell, with no need of pyplot.

    Args:
        width: in inches.
        height: in inches.
    """
    return _shown()(figsize=(width, height), layout="constrained")


@functools.cache
def _shown() -> Any:
    from matplotlib.figure import Figure  # takes a third of a second, which `import grpo_jax` need not

    class Picture(Figure):
        """A Figure that knows how notebooks show pictures; pyplot's own backend knows it of the figures it made."""

        def _repr_png_(self) -> bytes:
            drawn = io.BytesIO()
            self.savefig(drawn, format="png")
            return drawn.getvalue()

    return Picture
