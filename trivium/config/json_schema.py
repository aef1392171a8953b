"""The config's JSON Schema, with which an editor completes and checks the file."""

from typing import Any

from trivium.config.schema import Config
from trivium.config.sizes import SIZES

# Keys that must be written. The models leave them open, so that a missing one is one problem among all.
REQUIRED = {
    "Run": ["name"],
    "Stage": ["name"],
    "Anneal": ["start"],
    "Kl": ["beta"],
    "TokensSource": ["kind", "path"],
    "TextSource": ["kind", "path"],
    "HuggingFaceSource": ["kind", "dataset"],
    "StreamSource": ["kind", "dataset"],
    "ChatSource": ["kind"],
}


def config_schema() -> dict[str, Any]:
    """Draft 2020-12, every key with its doc line."""
    schema = Config.model_json_schema(mode="validation")
    for name, keys in REQUIRED.items():
        schema["$defs"][name]["required"] = keys
    schema["required"] = ["run", "model", "sources", "stages"]
    schema["$defs"]["Model"]["properties"]["size"]["enum"] = [*SIZES, None]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A trivium config",
        **{key: value for key, value in schema.items() if key != "title"},
    }
