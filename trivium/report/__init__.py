"""A run's files -> one page that shows it; a plan -> the same pictures before the run. Reads files only."""
