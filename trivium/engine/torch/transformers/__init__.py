"""Causal language models of the package transformers as the engine's model: any family, from a config or a folder."""
