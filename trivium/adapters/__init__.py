"""Other people's training loops that read a plan: one module each, which alone imports their package."""
