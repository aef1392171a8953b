"""The real engine's step without its arithmetic: how many bytes of what a rank holds, and whether a layout runs."""
