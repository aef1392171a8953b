"""trivium trains language models in stages: one TOML file says what a model reads, and when."""
