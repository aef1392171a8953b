"""Devices that share the slots of rows: which slots each has, and how they attend together."""
