"""The learning rate of every step: shapes, lengths and pieces of a curve."""
