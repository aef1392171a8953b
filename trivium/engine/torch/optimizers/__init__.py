"""Optimizers that torch does not have, or not so that ranks can share them."""
