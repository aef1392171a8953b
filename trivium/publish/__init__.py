"""A model for others: its card, GGUF for llama.cpp, the Hub."""
