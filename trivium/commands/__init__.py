"""Groups of commands, each a file."""
