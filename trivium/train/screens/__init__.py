"""What a launch shows: the live view of a terminal, plain lines for a pipe, the run's log file."""
