"""Rules across keys: what a config may not say, each with the fix; nothing is opened."""
