"""A plan and devices that need not be here -> memory, hours and cost of every stage, and whether a layout runs."""
