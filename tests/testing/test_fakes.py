import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_jax.tasks import Tokenizer, completion_ids, decode, encode_prompts
from grpo_jax.testing import ByteTokenizer, poisoned, random_batch, random_scores, scripted_sampler

TOKENIZER = ByteTokenizer()


@given(st.text(max_size=8))
def test_bytes_write_any_text(text):
    ids = TOKENIZER.encode(text)
    assert isinstance(TOKENIZER, Tokenizer)
    assert TOKENIZER.decode(ids) == text
    assert all(0 <= token < TOKENIZER.vocabulary_size for token in ids)
    assert not set(ids) & {TOKENIZER.pad_id, *TOKENIZER.end_ids}


@pytest.mark.parametrize(
    ("ids", "text"), [([65, 257, 66], "A"), ([65, 256, 66], "A\ufffdB"), ([65, 0xC3], "A\ufffd"), ([], "")]
)
def test_bytes_that_are_no_text_show(ids, text):
    assert TOKENIZER.decode(ids) == text


def test_the_scripted_sampler_writes_what_it_is_told():
    script = {"1+1=": ["2", "3"], "2+2=": ["4", "fourteen"]}
    generate = scripted_sampler(TOKENIZER, script.__getitem__, 2, 4, log_prob=-0.25)
    prompts = encode_prompts(TOKENIZER, list(script), 6, rows=3)
    rollout = generate(None, prompts, key=jax.random.key(0)).check()
    assert decode(TOKENIZER, rollout) == ["2", "3", "4", "four", "", ""]
    np.testing.assert_array_equal(rollout.finished, [[True, True], [True, False], [False, False]])
    assert completion_ids(rollout)[0] == [ord("2"), 257]
    np.testing.assert_array_equal(rollout.log_probs, np.where(rollout.mask, np.float32(-0.25), 0))


def test_a_script_of_the_wrong_length_is_refused():
    generate = scripted_sampler(TOKENIZER, lambda prompt: ["2"], 2, 4)
    with pytest.raises(ValueError, match="the script has 1 completions for 'p', expected 2"):
        generate(None, encode_prompts(TOKENIZER, ["p"], 3))


def test_random_batches_are_complete_and_repeatable():
    batch = random_batch(key=jax.random.key(1), prompts=2, group_size=3, tokens=4)
    chex.assert_trees_all_equal(batch, random_batch(key=jax.random.key(1), prompts=2, group_size=3, tokens=4))
    batch.check()
    chex.assert_shape([batch.mask, batch.old_log_probs, batch.behaviour_log_probs, batch.ref_log_probs], (2, 3, 4))
    assert {name for name, field in batch._asdict().items() if field is None} == {"advantages"}
    lengths = batch.mask.sum(axis=-1)
    assert lengths.min() >= 1
    assert lengths.max() == 4
    assert len(set(np.asarray(lengths).ravel().tolist())) > 1
    assert len(set(np.asarray(batch.rewards).ravel().tolist())) == 6
    # A mask is a run from the left.
    assert bool((batch.mask == (jnp.arange(4)[None, None, :] < lengths[..., None])).all())
    other = random_batch(key=jax.random.key(2), prompts=2, group_size=3, tokens=4)
    assert not bool((batch.old_log_probs == other.old_log_probs).any())


def test_random_log_ratios_have_the_spread_asked_for():
    batch = random_batch(key=jax.random.key(1), prompts=20, group_size=10, tokens=10, spread=0.2)
    scores = random_scores(batch, key=jax.random.key(2), spread=0.5)
    np.testing.assert_allclose(np.std(batch.ref_log_probs - batch.old_log_probs), 0.2, rtol=0.1)
    np.testing.assert_allclose(np.std(scores.log_probs - batch.old_log_probs), 0.5, rtol=0.1)
    assert float(scores.entropy.min()) > 0
    assert float(scores.full_kl.min()) > 0


def test_scores_of_an_on_policy_batch_need_no_old_log_probs():
    batch = random_batch(key=jax.random.key(1))._replace(old_log_probs=None)
    assert random_scores(batch, key=jax.random.key(2)).log_probs.shape == batch.mask.shape


@pytest.mark.parametrize("poison", [float("nan"), 1e30])
def test_poison_is_everywhere_that_must_not_be_read_and_nowhere_else(poison):
    batch = random_batch(key=jax.random.key(1))
    batch = batch._replace(valid=batch.valid.at[1, 2].set(False))
    scores = random_scores(batch, key=jax.random.key(2))
    spoilt_scores, spoilt = poisoned(scores, batch, poison)
    keep = np.asarray(batch.mask & batch.valid[..., None])
    pairs = [*zip(spoilt_scores, scores, strict=True)]
    pairs += [
        (getattr(spoilt, f"{x}_log_probs"), getattr(batch, f"{x}_log_probs")) for x in ("old", "behaviour", "ref")
    ]
    for after, before in pairs:
        np.testing.assert_array_equal(after, np.where(keep, before, np.float32(poison)))
    for after, before in [(spoilt.rewards, batch.rewards), (spoilt.task_rewards, batch.task_rewards)]:
        np.testing.assert_array_equal(after, np.where(batch.valid, before, np.float32(poison)))
    np.testing.assert_array_equal(spoilt.mask, batch.mask)


def test_poison_reaches_every_reward_of_an_invalid_member_when_there_are_several():
    batch = random_batch(key=jax.random.key(1), prompts=2, group_size=2)
    several = jnp.ones((2, 2, 3))
    batch = batch._replace(valid=batch.valid.at[0, 1].set(False), rewards=several, task_rewards=None)
    _, spoilt = poisoned(random_scores(batch, key=jax.random.key(2)), batch)
    np.testing.assert_array_equal(np.isnan(spoilt.rewards).sum(axis=-1), [[0, 3], [0, 0]])
    assert spoilt.task_rewards is None
