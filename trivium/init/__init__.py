"""A folder of data -> a config that trains on it, with the reasons; and the run of it from there to its report."""
