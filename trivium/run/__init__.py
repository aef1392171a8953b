"""A run on disk: its folder, events and checkpoints."""
