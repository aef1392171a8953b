"""Text <-> tokens: tokenizers, special tokens, conversations, chat templates."""
