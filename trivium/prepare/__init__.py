"""Raw text -> token files, in parallel, resumable."""
