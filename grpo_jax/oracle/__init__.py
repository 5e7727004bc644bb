"""Which gradient an objective follows: exactly, where all completions can be listed, and from samples elsewhere."""

from grpo_jax.oracle.blocks import LEAST_BLOCKS
from grpo_jax.oracle.certificate import Certificate, to_json
from grpo_jax.oracle.certify import certify
from grpo_jax.oracle.declared import Declaration, declaration, undeclared
from grpo_jax.oracle.exact import Expectation, covariance, expectation, expected_loss
from grpo_jax.oracle.instance import Enumerated, Instance, Tables, enumerated, exactly, random_instance, tables
from grpo_jax.oracle.jackknife import Findings, Interval
from grpo_jax.oracle.judgement import Record, judge
from grpo_jax.oracle.measured import Measured, Projection, as_row
from grpo_jax.oracle.monte_carlo import certify_sampled, sampled_findings
from grpo_jax.oracle.report import certify_shipped, heatmap, print_records
from grpo_jax.oracle.sampled_certificate import SampledCertificate
from grpo_jax.oracle.space import Groups, Space, completions, multisets, ordered

__all__ = [
    "Certificate",
    "Declaration",
    "Enumerated",
    "Expectation",
    "Findings",
    "Groups",
    "Instance",
    "Interval",
    "LEAST_BLOCKS",
    "Measured",
    "Projection",
    "Record",
    "SampledCertificate",
    "Space",
    "Tables",
    "as_row",
    "certify",
    "certify_sampled",
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
    "sampled_findings",
    "tables",
    "to_json",
    "undeclared",
]
