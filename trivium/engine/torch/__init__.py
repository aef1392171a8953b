"""The torch engine; the only place that knows torch."""
