"""Tasks of lm-evaluation-harness, asked of a model in its engine; needs the extra `eval`."""
