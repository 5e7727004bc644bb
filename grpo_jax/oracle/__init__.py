"""Which gradient an objective follows, computed exactly on policies small enough to list all their completions."""

from grpo_jax.oracle.certificate import Certificate, to_json
from grpo_jax.oracle.certify import certify
from grpo_jax.oracle.declared import Declaration, declaration, undeclared
from grpo_jax.oracle.exact import Expectation, covariance, expectation, expected_loss
from grpo_jax.oracle.instance import Enumerated, Instance, Tables, enumerated, exactly, random_instance, tables
from grpo_jax.oracle.judgement import Record, judge
from grpo_jax.oracle.report import certify_shipped, heatmap, print_records
from grpo_jax.oracle.space import Groups, Space, completions, multisets, ordered

__all__ = [
    "Certificate",
    "Declaration",
    "Enumerated",
    "Expectation",
    "Groups",
    "Instance",
    "Record",
    "Space",
    "Tables",
    "certify",
    "certify_shipped",
    "completions",
    "covariance",
    "declaration",
    "enumerated",
    "exactly",
    "expectation",
    "expected_loss",
    "heatmap",
    "judge",
    "multisets",
    "ordered",
    "print_records",
    "random_instance",
    "tables",
    "to_json",
    "undeclared",
]
