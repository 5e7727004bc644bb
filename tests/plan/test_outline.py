"""Shapes of models that are not here."""

import json
from dataclasses import replace

import jax
import pytest

from grpo_jax.config import Config
from grpo_jax.models import decoder
from grpo_jax.models.pretrained import PUBLISHED, published_config
from grpo_jax.plan import outline
from grpo_jax.presets import preset

PARAMETERS = {
    "Qwen2.5-7B": 7_615_616_512,
    "Qwen2.5-0.5B-Instruct": 494_032_768,
    "Llama-3.1-8B-Instruct": 8_030_261_248,
    "SmolLM2-135M-Instruct": 134_515_008,
}
"""As their model cards and safetensors indices count them."""
MATH = preset("qwen2.5-7b-math")


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_shape_has_the_published_number_of_parameters(name):
    policy = decoder(published_config(name, scan_layers=True))
    shapes = jax.eval_shape(lambda: policy.init(key=jax.random.key(0)))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == PARAMETERS[name]


def test_a_run_without_a_pretrained_model_needs_no_stand_in():
    assert outline(Config()) == (None, None)


def test_a_stand_in_has_the_published_shape_and_the_numerics_of_the_run(tmp_path):
    checkpoint, task = outline(MATH)
    assert checkpoint is not None
    assert (checkpoint.config.width, checkpoint.config.dtype, checkpoint.config.scan_layers) == (3584, "bfloat16", True)
    assert task is not None
    assert task.max_prompt_tokens == MATH.task.max_prompt_tokens
    other = tmp_path / "config.json"
    other.write_text(json.dumps({**PUBLISHED["Qwen2.5-7B"], "num_hidden_layers": 3}))
    changed = outline(MATH, other).checkpoint
    assert changed is not None
    assert changed.config == replace(checkpoint.config, layers=3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": replace(MATH.model, path="models/mine")}, "give its config.json with --config-json"),
        ({"task": replace(MATH.task, max_prompt_tokens=None)}, "--task.max-prompt-tokens"),
        ({"rollout": replace(MATH.rollout, max_tokens=None)}, "--rollout.max-tokens"),
    ],
)
def test_what_nothing_says_has_to_be_given(changes, message):
    with pytest.raises(ValueError, match=message):
        outline(replace(MATH, **changes))


def test_an_unknown_model_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"the shape of Qwen9 is not known; known are Qwen2\.5-7B"):
        published_config("Qwen9")
