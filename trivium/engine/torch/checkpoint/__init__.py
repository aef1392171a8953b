"""A model's tensors: drawn from a seed, written into folders and read from them."""
