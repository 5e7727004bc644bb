"""Reward functions by the name of their module, as a command line can give them."""

import importlib
import os
import sys

from grpo_jax.rewards.calls import RewardFunction


def imported(name: str) -> RewardFunction:
    """Imports a reward function.

    Args:
        name: ``module:function``; modules in the working directory are found too.

    Returns:
        The function.

    Raises:
        ValueError: not of that form, no such module or function, or the module fails to be imported, with its error.
    """
    module_name, colon, function_name = name.partition(":")
    if not (module_name and colon and function_name):
        raise ValueError(
            f'reward function {name!r}: give module:function, such as "my_rewards:correct" for a function '
            "correct in my_rewards.py"
        )
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever the module does
        raise ValueError(
            f"reward function {name!r}: importing {module_name} raised {type(error).__name__}: {error} (looked in "
            f"{os.getcwd()} too)"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        there = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
        raise ValueError(f"reward function {name!r}: {module_name} has no function {function_name!r}, only {there}")
    return function  # pyright: ignore[reportReturnType]
