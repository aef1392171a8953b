"""What the user writes: every table and key, the rules between them, and other tools' configs."""
