"""The sections of a page, one module each: a run as a page shows it -> charts, tables and texts."""
