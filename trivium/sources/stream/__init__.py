"""A streaming dataset, read forward in a fixed number of lanes."""
