"""Files of tokens on disk: found, opened, described, written."""
