"""A `[sources.x]` table -> an open source; one module for each kind."""
