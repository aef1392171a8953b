"""The other tools whose configs are taken as they are; light, so that the command line may list them."""

DIALECT_NAMES = ("torchtitan", "kempnerforge", "theseus", "nanotron")
