"""A small hybrid of attention and a recurrence, twice: `torch_hybrid` and `flax_hybrid` compute the same."""
