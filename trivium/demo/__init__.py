"""One command that trains a small model in three stages on what every Python has, and shows what happened."""
