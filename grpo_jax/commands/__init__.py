"""The commands of the program, a dataclass each: its fields are the options, its ``execute`` returns the exit status.

Anything that is wrong with the arguments or the files is a ValueError, OSError or ImportError.
"""

from grpo_jax.commands.certificates import Certify
from grpo_jax.commands.checkpoint import Evaluate, Export, Sample
from grpo_jax.commands.planning import Plan
from grpo_jax.commands.reading import Diagnose, Report
from grpo_jax.commands.training import Train, starting_point
from grpo_jax.commands.tuning import Sweep

__all__ = ["Certify", "Diagnose", "Evaluate", "Export", "Plan", "Report", "Sample", "Sweep", "Train", "starting_point"]
