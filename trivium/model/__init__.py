"""The shape of a model: sizes, rotary positions, Hugging Face names and files. No framework."""
