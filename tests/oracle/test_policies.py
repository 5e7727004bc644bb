"""Every kind of policy that can be listed: of fixed and of variable length, of two parameters, and a network."""

from dataclasses import replace

import numpy as np
import pytest

from grpo_jax import kl
from grpo_jax.advantages import leave_one_out
from grpo_jax.losses import objective, reductions, surrogates
from grpo_jax.models import DecoderConfig, decoder, position_tabular, prefix_tabular
from grpo_jax.models.count import count_model
from grpo_jax.oracle import exact, instance, space

TINY = DecoderConfig(vocabulary_size=3, layers=1, width=4, heads=1, kv_heads=1, head_dim=2, hidden=4)
LISTED = {
    "fixed length": (instance.enumerated(prefix_tabular(2, 3), 3, ()), 1e-13),
    "two ends": (instance.enumerated(prefix_tabular(4, 2), 2, (0, 3)), 1e-13),
    "positions": (instance.enumerated(position_tabular(3, 2), 2, (1,)), 1e-13),
    "count": (instance.enumerated(count_model(), 5, ()), 1e-13),
    "decoder": (instance.enumerated(decoder(TINY), 2, (0,), prompt=(1, 2)), 1e-13),
    "decoder in bfloat16": (instance.enumerated(decoder(replace(TINY, dtype="bfloat16")), 2, (0,)), 1e-13),
}
TERMS = {
    "reverse": kl.penalty(kl.k1, "reward"),
    "local_reverse": kl.penalty(kl.k2, "loss"),
    "forward": kl.penalty(kl.k3, "loss", "sequence", kl.importance.detached_sequence()),
}


@pytest.mark.parametrize("policy", LISTED)
def test_the_declared_gradient_is_found_on_every_policy(policy):
    listed, tolerance = LISTED[policy]
    drawn = instance.random_instance(listed, 0)
    groups = space.multisets(len(drawn.rewards), 2)
    for name, term in TERMS.items():
        built = objective(
            leave_one_out(),
            surrogates.sequence_importance_weighted(),
            reductions.sequence_mean_of_token_sum(),
            kl=term,
        )
        for off_policy in (False, True):
            if off_policy and name == "local_reverse":
                continue
            tables = instance.tables(drawn, off_policy)
            found = exact.expectation(built, tables, groups)
            size = np.linalg.norm(tables.targets[name])
            np.testing.assert_allclose(found.kl, tables.targets[name], rtol=0, atol=tolerance * size)
            np.testing.assert_allclose(
                found.reward, tables.targets["reward"], rtol=0, atol=tolerance * size + tolerance
            )


def test_a_fixed_length_has_no_push_on_length():
    drawn = instance.random_instance(LISTED["fixed length"][0], 0)
    np.testing.assert_allclose(instance.tables(drawn).targets["length"], 0, atol=1e-15)
