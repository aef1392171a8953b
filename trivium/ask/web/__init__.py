"""A page to talk to models, served to this machine alone."""
