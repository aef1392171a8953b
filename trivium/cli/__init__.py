"""The command line: parse, call, print. A module for each group of commands."""
