"""Spikes of a run, to be clicked: their rows by loss, the documents, and what leaves them out."""
