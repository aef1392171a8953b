"""Ranks that share every matrix: what each of them holds, and what they send each other."""
