"""The decoder as loops over tokens, heads and keys in float64, one unpadded sequence at a time."""

import math

import numpy as np


def rms_norm(x, scale, epsilon):
    return x / math.sqrt(sum(float(value) ** 2 for value in x) / len(x) + epsilon) * scale


def rotate(head, position, theta):
    half = len(head) // 2
    rotated = np.zeros(len(head))
    for i in range(half):
        angle = position * theta ** (-2 * i / len(head))
        rotated[i] = head[i] * math.cos(angle) - head[i + half] * math.sin(angle)
        rotated[i + half] = head[i + half] * math.cos(angle) + head[i] * math.sin(angle)
    return rotated


def softmax(logits):
    weights = np.exp(np.asarray(logits) - max(logits))
    return weights / weights.sum()


def attend(queries, keys, values, group):
    """Causal attention; query head h reads key-value head h // group."""
    outputs = np.zeros_like(queries)
    for t in range(len(queries)):
        for h in range(queries.shape[1]):
            past = [keys[s, h // group] @ queries[t, h] / math.sqrt(queries.shape[2]) for s in range(t + 1)]
            for s, weight in enumerate(softmax(past)):
                outputs[t, h] += weight * values[s, h // group]
    return outputs


def block(weights, config, x):
    normed = np.stack([rms_norm(row, weights["attention_norm"], config.norm_epsilon) for row in x])
    query, key, value = (np.einsum("tw,whd->thd", normed, weights[name]) for name in ("query", "key", "value"))
    for t in range(len(x)):
        query[t] = [rotate(head, t, config.rope_theta) for head in query[t]]
        key[t] = [rotate(head, t, config.rope_theta) for head in key[t]]
    context = attend(query, key, value, config.heads // config.kv_heads)
    x = x + np.einsum("thd,hdw->tw", context, weights["output"])
    normed = np.stack([rms_norm(row, weights["mlp_norm"], config.norm_epsilon) for row in x])
    gate = normed @ weights["gate"]
    return x + (gate / (1 + np.exp(-gate)) * (normed @ weights["up"])) @ weights["down"]


def logits(params, config, tokens):
    """Next-token logits after each of the tokens [length, V]."""
    as_float64 = lambda tree: {k: as_float64(v) if isinstance(v, dict) else np.float64(v) for k, v in tree.items()}  # noqa: E731
    params = as_float64(params)
    x = params["embedding"][np.asarray(tokens)]
    for layer in range(config.layers):
        stacked = params["blocks"]
        unrolled = stacked.get(f"layer_{layer}") or {name: leaf[layer] for name, leaf in stacked.items()}
        x = block(unrolled, config, x)
    x = np.stack([rms_norm(row, params["final_norm"], config.norm_epsilon) for row in x])
    return x @ (params["embedding"].T if config.tied_head else params["head"])


def distributions(params, config, prompt, completion, temperature):
    """The distribution each completion token was drawn from [T, V]."""
    after = logits(params, config, [*prompt, *completion[:-1]]) / temperature
    return np.stack([softmax(row) for row in after[len(prompt) - 1 :]])
