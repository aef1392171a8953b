"""Ranks that share the slots of rows: which slots each has, and what they send each other to attend."""
