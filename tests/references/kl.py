"""KL as loops in float64: estimators of the log-ratio u = log pi - log p, their derivatives, and exact sums."""

import math


def k1(u):
    return u


def k2(u):
    return u * u / 2


def k3(u):
    return math.expm1(-u) + u


def absolute(u):
    return abs(u)


def k1_slope(u):
    return 1.0


def k2_slope(u):
    return u


def k3_slope(u):
    return -math.expm1(-u)


def absolute_slope(u):
    return math.copysign(1.0, u) if u else 0.0


ESTIMATORS = {"k1": (k1, k1_slope), "k2": (k2, k2_slope), "k3": (k3, k3_slope), "absolute": (absolute, absolute_slope)}


def differences(log_probs, other_log_probs, mask):
    """Log-ratios of one completion; 0 where masked, whatever stands there."""
    rows = zip(log_probs, other_log_probs, mask, strict=True)
    return [float(lp) - float(other) if m else 0.0 for lp, other, m in rows]


def per_token(estimator, log_probs, ref_log_probs, mask):
    rows = zip(differences(log_probs, ref_log_probs, mask), mask, strict=True)
    return [estimator(u) if m else 0.0 for u, m in rows]


def per_sequence(estimator, log_probs, ref_log_probs, mask):
    """The estimator of the whole completion's log-ratio."""
    return estimator(sum(differences(log_probs, ref_log_probs, mask)))


def to_go(values, mask):
    """At each token the sum of the values from there to the end; 0 where masked."""
    return [
        sum(v for v, m in zip(values[t:], mask[t:], strict=True) if m) if mask[t] else 0.0 for t in range(len(mask))
    ]


def causal_weights(log_ratios):
    """The importance weight of everything up to and including each token."""
    return [math.exp(sum(log_ratios[: t + 1])) for t in range(len(log_ratios))]


def prefix_weights(log_ratios):
    """The importance weight of everything before each token."""
    return [math.exp(sum(log_ratios[:t])) for t in range(len(log_ratios))]


def softmax(logits):
    top = max(logits)
    weights = [math.exp(x - top) for x in logits]
    return [w / sum(weights) for w in weights]


def exact(probabilities, reference):
    """KL(pi || p) of two distributions, nats."""
    return sum(a * math.log(a / b) for a, b in zip(probabilities, reference, strict=True) if a > 0)


def expected_gradient(logits, sampling, pull):
    """E_{a ~ sampling}[pull_a * grad log pi(a)] by the logits of pi."""
    policy = softmax(logits)
    gradient = [0.0] * len(logits)
    for action, (weight, force) in enumerate(zip(sampling, pull, strict=True)):
        for i, p in enumerate(policy):
            gradient[i] += weight * force * ((1.0 if i == action else 0.0) - p)
    return gradient
