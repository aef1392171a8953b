"""`[defaults]` merged into each stage: key by key, tables whole, never from a neighbour."""

from trivium.config.schema import Config, Stage, StageDefaults

# Several ways of saying one thing: a stage that says one of them does not take the other from [defaults],
# and an override of one of them takes the place of what the file says.
EITHER = (
    ("steps", "tokens", "epochs", "fraction", "minutes"),
    ("mixture", "weights", "sources"),
    ("batch_size", "batch_tokens"),
)


def merged_stages(config: Config) -> tuple[Stage, ...]:
    """The stages as they will run: what they say, else what `[defaults]` says, else the schema's default."""
    return tuple(merged(stage, config.defaults) for stage in config.stages)


def merged(stage: Stage, defaults: StageDefaults) -> Stage:
    """One stage with what `[defaults]` adds to it."""
    said = stage.model_fields_set
    spoken_for = {key for ways in EITHER if said & set(ways) for key in ways}
    taken = defaults.model_fields_set - said - spoken_for
    return stage.model_copy(update={key: getattr(defaults, key) for key in sorted(taken)})
