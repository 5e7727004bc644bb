"""TRL's constructors give the numbers of TRL's own functions, stored by experiments/migration/trl_reference.py."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import compat, kl
from grpo_jax.losses import reductions
from grpo_jax.oracle import exactly
from grpo_jax.oracle.exact import QUICK
from grpo_jax.types import Batch, Scores

STORED = json.loads((Path(__file__).parent / "fixtures" / "trl.json").read_text(encoding="utf-8"))
OURS = {
    "dapo": lambda: compat.trl_grpo(),
    "dapo, not corrected": lambda: compat.trl_grpo(importance=kl.importance.none()),
    "grpo": lambda: compat.trl_grpo(reduction=reductions.sequence_mean_of_token_mean()),
    "bnpo": lambda: compat.trl_grpo(reduction=reductions.token_mean()),
    "dr_grpo": lambda: compat.trl_grpo(reduction=reductions.constant_length(4)),
    "luspo": lambda: compat.trl_grpo(reduction=reductions.sequence_mean_of_token_sum()),
    "delta": lambda: compat.trl_grpo(delta=1.3),
    "epsilon_high": lambda: compat.trl_grpo(epsilon_high=0.4),
    "sequence": lambda: compat.trl_gspo(),
    "cispo": lambda: compat.trl_cispo(1.3),
    "rloo": lambda: compat.trl_rloo(),
}


def stored(name):
    """An array of the stored batch as two groups of three."""
    return np.asarray(STORED[name], np.float64).reshape(2, 3, -1)


def test_every_stored_case_is_compared():
    assert set(OURS) == set(STORED["cases"])
    assert STORED["versions"]["trl"].startswith("1.16.")


def test_the_stored_cases_tell_the_options_apart():
    losses = {name: round(case["loss"], 9) for name, case in STORED["cases"].items()}
    assert losses.pop("bnpo") == losses["dapo"], "one micro-batch: the two are the same mean"
    assert len(set(losses.values())) == len(losses)


@pytest.mark.parametrize("case", OURS)
def test_loss_and_gradient_are_those_of_trl(case):
    with exactly():
        batch = Batch(
            mask=jnp.asarray(stored("mask") > 0),
            rewards=jnp.asarray(stored("rewards")[..., 0]),
            old_log_probs=jnp.asarray(stored("old")),
            ref_log_probs=jnp.asarray(stored("ref")),
        )
        built = OURS[case]()
        evaluate = jax.value_and_grad(lambda x: built(Scores(x), batch, STORED["beta"])[0])
        value, gradient = jax.jit(evaluate, compiler_options=QUICK)(jnp.asarray(stored("log_probs")))
    theirs = STORED["cases"][case]
    np.testing.assert_allclose(value, theirs["loss"], rtol=1e-12)
    np.testing.assert_allclose(np.reshape(gradient, (6, 4)), theirs["gradient"], rtol=1e-10, atol=1e-14)


def test_a_cap_below_one_is_refused():
    with pytest.raises(ValueError, match="the largest ratio itself"):
        compat.trl_cispo(0.2)
