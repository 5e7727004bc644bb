"""Checkpoints of a run: written while it goes on, kept by rule, checked when read, restored bit for bit (Orbax).

A checkpoint is a folder named after its step. It appears under that name complete or not at all: it is written beside
it and renamed. Inside, ``arrays`` is what Orbax stores: a flat dict from a leaf's place in the state ("params.embed",
"opt_state.0.mu.embed") to its array, so that it depends on no container type. ``manifest.json`` has shape, dtype and
fingerprint of each leaf as it was on the devices, and size and checksum of the files, so that what is read later is
known to be what was there.
"""

from grpo_jax.checkpoints.keeping import Keep, kept
from grpo_jax.checkpoints.places import rebuilt
from grpo_jax.checkpoints.reading import Restored, latest, load, restore, steps
from grpo_jax.checkpoints.writing import Saver, save, saver

__all__ = ["Keep", "Restored", "Saver", "kept", "latest", "load", "rebuilt", "restore", "save", "saver", "steps"]
