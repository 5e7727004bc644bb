"""A tabular policy over three tokens, small enough to list every completion, and the exact gradients on it.

Token 0 ends a completion; at most three tokens. The logits of the next token stand in one row per prefix, so that
prefixes matter, and lengths vary. Everything is NumPy in float64; gradients are taken by hand.
"""

import itertools

import numpy as np

VOCABULARY = 3
WIDTH = 3
END = 0
PREFIXES = [prefix for length in range(WIDTH) for prefix in itertools.product((1, 2), repeat=length)]
ROW = {prefix: row for row, prefix in enumerate(PREFIXES)}


def _completions():
    for length in range(1, WIDTH + 1):
        for head in itertools.product((1, 2), repeat=length - 1):
            yield from ((*head, last) for last in ((END,) if length < WIDTH else range(VOCABULARY)))


COMPLETIONS = list(_completions())
LENGTHS = np.array([len(y) for y in COMPLETIONS])
MASK = np.arange(WIDTH) < LENGTHS[:, None]
ROWS = np.array([[ROW[y[:t]] if t < len(y) else 0 for t in range(WIDTH)] for y in COMPLETIONS])
TOKENS = np.array([[y[t] if t < len(y) else 0 for t in range(WIDTH)] for y in COMPLETIONS])


def random_logits(seed, scale=0.8):
    return scale * np.random.default_rng(seed).standard_normal((len(PREFIXES), VOCABULARY))


def log_softmax(logits):
    return logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))


def log_probs(logits):
    """Log-probability of every token of every completion ``[N, T]``; 0 where masked."""
    return np.where(MASK, log_softmax(logits)[ROWS, TOKENS], 0)


def probabilities(logits):
    """Probability of every completion ``[N]``."""
    return np.exp(np.sum(log_probs(logits), axis=1))


def token_scores(logits):
    """The gradient of each log-probability by the logits ``[N, T, rows, V]``."""
    gradient = np.zeros((*MASK.shape, len(PREFIXES), VOCABULARY))
    policy = np.exp(log_softmax(logits))
    for n, t in np.argwhere(MASK):
        row = ROWS[n, t]
        gradient[n, t, row] = -policy[row]
        gradient[n, t, row, TOKENS[n, t]] += 1
    return gradient


def next_token_kl(logits, other):
    """KL(softmax(logits) || softmax(other)) of every row, and its gradient by ``logits`` ``[rows, V]``."""
    difference = log_softmax(logits) - log_softmax(other)
    policy = np.exp(log_softmax(logits))
    kl = np.sum(policy * difference, axis=1)
    return kl, policy * (difference - kl[:, None])


def full_kl(logits, reference):
    """The exact KL of the next token at every position ``[N, T]``, and its gradient ``[N, T, rows, V]``."""
    kl, by_logits = next_token_kl(logits, reference)
    gradient = np.zeros((*MASK.shape, len(PREFIXES), VOCABULARY))
    for n, t in np.argwhere(MASK):
        gradient[n, t, ROWS[n, t]] = by_logits[ROWS[n, t]]
    return np.where(MASK, kl[ROWS], 0), gradient


def _visits(weights):
    """How often each row is visited under completions of the given probabilities."""
    return np.array([np.sum(weights[:, None] * (MASK & (row == ROWS))) for row in range(len(PREFIXES))])


def exact_gradients(logits, reference, sampler):
    """The gradients that a KL term may follow, by name, each ``[rows, V]``."""
    pi, p = probabilities(logits), probabilities(reference)
    score = np.sum(token_scores(logits), axis=1)
    log_ratio = np.sum(log_probs(logits) - log_probs(reference), axis=1)
    local_reverse = next_token_kl(logits, reference)[1]
    local_forward = np.exp(log_softmax(logits)) - np.exp(log_softmax(reference))
    own, other = _visits(pi)[:, None], _visits(probabilities(sampler))[:, None]
    return {
        "reverse": np.einsum("n,nrv->rv", pi * log_ratio, score),
        "forward": -np.einsum("n,nrv->rv", p, score),
        "local_reverse": own * local_reverse,
        "local_forward": own * local_forward,
        "sampler_local_reverse": other * local_reverse,
        "sampler_local_forward": other * local_forward,
        "length": np.einsum("n,nrv->rv", pi / LENGTHS, score),
    }


def expected_gradient(weights, by_log_probs, logits, by_full_kl=None, reference=None):
    """Sums what every completion contributes: gradients by its scores ``[N, T]``, carried on to the logits."""
    gradient = np.einsum("n,nt,ntrv->rv", weights, by_log_probs, token_scores(logits))
    if by_full_kl is not None:
        gradient += np.einsum("n,nt,ntrv->rv", weights, by_full_kl, full_kl(logits, reference)[1])
    return gradient
