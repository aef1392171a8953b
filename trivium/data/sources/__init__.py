"""The kinds of source, one file each."""
