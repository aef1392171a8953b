"""The loop that takes a plan to its end: framework-free, one process or many."""
