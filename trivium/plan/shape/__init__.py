"""The model of a plan: its shape as asked for, as weights have it, or by one dial; and what stages change of it."""
