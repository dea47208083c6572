"""The policies: one protocol (`base`), one file per policy, named by the paper's word."""
