"""Families of models that others publish: what their layers have, and how their files say it."""
