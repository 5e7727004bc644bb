"""Sampled certificates as a user meets them: of a term, of an objective, of a decoder; printed, saved, drawn."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest

from grpo_jax import advantages, kl
from grpo_jax.losses import objective, reductions, surrogates
from grpo_jax.models import DecoderConfig, decoder, prefix_tabular
from grpo_jax.oracle import Measured, certify_sampled, sampled_findings
from grpo_jax.oracle.certify import as_objective
from grpo_jax.rollouts import categorical, sampler
from grpo_jax.types import Batch, Prompts

POLICY = prefix_tabular(3, 2)
PARAMS, REF, OTHER = ({"logits": 0.6 * POLICY.init(key=jax.random.key(seed))["logits"]} for seed in range(3))
PROMPT = Prompts(jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1), bool))
QUICK = {"key": jax.random.key(0), "max_tokens": 2, "end_ids": (0,), "groups": 600, "group_size": 2, "blocks": 10}


def certified(subject, **options):
    return certify_sampled(subject, POLICY, PARAMS, REF, PROMPT, **QUICK, **options)


@pytest.fixture(scope="module")
def wrong():
    """A term that follows the local forward KL and says that it follows the reverse one, off-policy."""
    target = kl.Target(reverse=1.0, slope=1.0)
    term = kl.penalty(kl.k3, "loss", "token", kl.importance.detached_sequence())
    planted = term._replace(target=target, loss_off_policy=target)
    return certified(planted, behaviour_params=OTHER)


@pytest.fixture(scope="module")
def own():
    """A function of the log-ratio that follows nothing."""
    return certified(lambda u: jnp.tanh(u))


def test_a_wrong_declaration_is_found_out(wrong):
    assert wrong.agrees is False
    assert "WRONG: it declares that it follows reverse" in wrong.verdict
    assert wrong.relative_bias.low > 0.1
    assert wrong.cosine == wrong.cosine_reverse
    assert 0 < wrong.effective_sample_size < 1
    assert wrong.behaviour == "off"


def test_a_sampler_that_misses_what_the_policy_writes_decides_nothing():
    far = certified(kl.k1, behaviour_params={"logits": 25 * OTHER["logits"]})
    assert not far.covered
    assert far.agrees is None
    assert far.verdict.startswith("Undecided: importance weights are 0.")
    near = certified(kl.k1, behaviour_params=OTHER)
    assert near.covered
    assert near.agrees is True
    assert near.mean_weight.low < 1 < near.mean_weight.high


@pytest.mark.parametrize("name", ["ref_params", "behaviour_params"])
def test_parameters_of_another_shape_are_refused(name):
    short = {"logits": REF["logits"][:, :1]}
    options = {"ref_params": REF, "behaviour_params": None, name: short}
    with pytest.raises(ValueError, match=rf"{name} has shapes .*\(1, 1, 3\).*, but params has"):
        certify_sampled(kl.k1, POLICY, PARAMS, prompts=PROMPT, **options, **QUICK)


def test_a_function_that_follows_nothing_gets_its_distance_from_reverse(own):
    assert own.agrees is None
    assert own.declared == "none"
    assert own.compared == "reverse"
    assert 0 < own.relative_bias.low < own.relative_bias.value < own.relative_bias.high
    assert own.verdict.startswith("Follows no objective, it says (the weight it puts on the score")
    assert own.effective_sample_size == pytest.approx(1)


def test_a_decoder_with_rewards_and_a_whole_objective(tmp_path):
    policy = decoder(DecoderConfig(vocabulary_size=7, layers=1, width=8, heads=2, kv_heads=1, head_dim=4, hidden=8))
    params, ref = (policy.init(key=jax.random.key(seed)) for seed in range(2))
    prompts = Prompts(jnp.array([[2, 3], [3, 2]]), jnp.ones((2, 2), bool))
    seen = []

    def reward(rollout):
        seen.append(rollout.check().tokens.shape)
        return [[float(sum(member)) for member in group] for group in rollout.tokens.tolist()]

    built = objective(
        advantages.standardised(), surrogates.clipped(), reductions.token_mean(), kl=kl.full_vocabulary("both")
    )
    found = certify_sampled(
        built, policy, params, ref, prompts, reward, key=jax.random.key(1), max_tokens=3, end_ids=(1,), groups=180,
        blocks=9, beta=0.1, temperature=0.7, directions=2,
    )  # fmt: skip
    assert seen == [(180, 8, 3)]
    assert (found.groups, len(found.projections)) == (180, 2)
    assert "divides by lengths" in found.reason
    assert found.notes[-2:] == (
        "180 groups of 8 completions in 9 blocks",
        "each block of 20 groups is a batch of its own, and its statistics are its own",
    )
    # One batch's mean over tokens is close to the same term's sum divided by the mean length.
    assert found.cosine.value > 0.9
    found.to_json(tmp_path / "found.json")


def test_it_prints_saves_and_draws(wrong, own, tmp_path):
    text = str(wrong)
    assert repr(wrong) == text
    assert "k3 in loss, token" in text
    assert "relative bias to reverse" in text
    assert "600 groups of 2 completions in 10 blocks" in text
    path = tmp_path / "wrong.json"
    read = json.loads(wrong.to_json(path), parse_constant=lambda name: pytest.fail(name))
    assert json.loads(path.read_text()) == read
    assert read["agrees"] is False
    assert read["verdict"] == wrong.verdict
    assert read["relative_bias"] == dataclasses.asdict(wrong.relative_bias)
    assert len(read["projections"]) == 8
    left, right = wrong.plot(tmp_path / "wrong.png").axes
    assert (tmp_path / "wrong.png").stat().st_size > 5000
    assert [tick.get_text() for tick in left.get_xticklabels()] == ["relative bias", "cosine with\nreverse"]
    assert right.get_xlabel() == "random unit vector"
    hidden = Measured(None, None, None)
    lost = dataclasses.replace(own, relative_bias=hidden, resolution=None, cosine=hidden, projections=())
    assert lost.verdict.startswith("Undecided: the gradient of reverse itself is lost in the noise")
    assert '"resolution": null' in lost.to_json()
    assert "a gradient is not finite" in dataclasses.replace(lost, squared_norm=hidden).verdict
    assert "?" in str(lost)
    lost.plot()
    with pytest.raises(dataclasses.FrozenInstanceError):
        own.name = "another"


@pytest.mark.parametrize(("resolution", "said"), [(0.1, "A relative bias of 0.1 would"), (0.3, "This says little")])
def test_an_agreement_says_what_it_is_worth(own, resolution, said):
    agreeing = dataclasses.replace(
        own, declared="reverse", reason="", relative_bias=Measured(0.0, 0.0, 0.2), resolution=resolution
    )
    assert agreeing.agrees
    assert agreeing.verdict.startswith("Compatible with its declaration that it follows reverse: relative bias at most")
    assert said in agreeing.verdict
    nowhere = dataclasses.replace(agreeing, declared="zero")
    assert "pulls nowhere" in nowhere.verdict


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": 9}, "9 groups make no 10 blocks; raise groups"),
        ({"blocks": 2}, "2 blocks say nothing of the noise; take at least 3"),
        ({"beta": 0.0}, "beta is 0.0; it must be > 0"),
        ({"prompts": Prompts(jnp.zeros((0, 1), jnp.int32), jnp.ones((0, 1), bool))}, "there are no prompts"),
        ({"reward": lambda rollout: jnp.zeros(rollout.finished.shape[0])}, r"reward returned shape \(600,\)"),
        ({"reward": lambda rollout: jnp.full(rollout.finished.shape, jnp.nan)}, "1200 of 1200 rewards are not finite"),
    ],
)
def test_what_cannot_be_estimated_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        certify_sampled(kl.k1, POLICY, PARAMS, REF, **{"prompts": PROMPT, **QUICK, **options})


def test_a_batch_that_nobody_scored_is_refused():
    measure = sampled_findings(POLICY.score, as_objective(kl.k1), 2, blocks=3)
    rollout = sampler(POLICY, categorical(), 2, 2, (0,), 0)(PARAMS, PROMPT, key=jax.random.key(0))
    with pytest.raises(ValueError, match="score the reference first"):
        measure(PARAMS, rollout, Batch(rollout.mask, jnp.zeros((1, 2))), 1.0, REF, jax.random.key(0))


def test_without_a_kl_term_there_is_nothing_to_certify():
    plain = objective(advantages.leave_one_out(), surrogates.reinforce(), reductions.token_mean())
    with pytest.raises(ValueError, match="no KL term"):
        certified(plain)
