"""The JAX engine; the only place that knows jax."""
