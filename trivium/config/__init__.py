"""What the user writes: every table and key, the rules between them, and other tools' configs."""

# The other tools whose configs are taken as they are; here, so that --help lists them without pydantic.
DIALECT_NAMES = ("torchtitan", "kempnerforge", "theseus", "nanotron")
