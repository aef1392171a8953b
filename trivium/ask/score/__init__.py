"""Questions of tasks -> scores: what a model answers, beside what guessing gives."""
