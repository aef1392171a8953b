"""Prompts -> texts: how next tokens are chosen, when a row ends, and tools that are called in between."""
