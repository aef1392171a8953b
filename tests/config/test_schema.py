"""What may be written: the example of the design, a doc line for every key, and the JSON Schema."""

import tomllib
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import pytest
from jsonschema import Draft202012Validator

from tests.support.configs import base
from tests.support.tables import TABLES
from trivium.config.batches import Batches
from trivium.config.fields import EpochBudget, Table, doc_lines
from trivium.config.keys import RENAMED, Key
from trivium.config.load import load_config, validate
from trivium.config.schema import SIZES, Config, config_schema
from trivium.plan.make import make_plan

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.toml"))

DESIGN = """
[run]
name = "small"
seed = 1234

[model]
layers = 8
width = 512
# or: init = "path/to/a/Hugging/Face/checkpoint"

[sources.web]
kind = "tokens"
path = "data/web"

[sources.code]
kind = "tokens"
path = "data/code"

[sources.chat]
kind = "chat"
path = "data/chat.jsonl"

[[stages]]
name = "general"
tokens = "2B"                        # or steps = 4000, or epochs = 1.5
mixture = { web = 0.8, code = 0.2 }
seq_len = 2048
batch_size = 256                     # rows in a step, on all ranks

[[stages]]
name = "long"
tokens = "200M"
mixture = { web = 0.5, code = 0.5 }
fade = "50M"                         # shares move there linearly
seq_len = 8192
batch_size = 64
rope = { theta = 500_000 }

[[stages]]
name = "chat"
epochs = { chat = 1 }                # until this source has been read once
mixture = { chat = 0.7, web = 0.3 }
packing = "bestfit"
lr = { scale = 0.3, shape = "linear", to = 0.0 }
kl = { beta = 0.1 }                  # to the model as it was when this stage began
"""


KEYS = [(table, name) for table in TABLES for name in table.model_fields]


@pytest.fixture(scope="module")
def schema() -> Draft202012Validator:
    return Draft202012Validator(config_schema())


def faults(schema: Draft202012Validator, raw: dict[str, Any]) -> list[str]:
    return [error.json_path for error in schema.iter_errors(raw)]


def test_the_design_example_loads(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(DESIGN)
    config = load_config(file)
    general, long, chat = config.stages
    assert (general.budget_tokens, general.mixture) == (2 * 10**9, {"web": 0.8, "code": 0.2})
    assert general.batches == Batches.constant(256)
    assert long.fade is not None
    assert (long.fade.tokens, long.fade.shape) == (50_000_000, "linear")
    assert long.rope is not None
    assert long.rope.theta == 500_000
    assert chat.epochs == EpochBudget(by_source={"chat": 1})
    assert (chat.seq_len, chat.batches.largest, chat.document_mask) == (2048, 256, True)
    assert chat.kl is not None
    assert (chat.kl.beta, chat.kl.direction, chat.kl.reference) == (0.1, "forward", None)
    assert [stage.name for stage in make_plan(config).stages] == ["general", "long", "chat"]


def test_there_are_many_tables() -> None:
    assert {"Run", "Model", "Stage", "StageDefaults", "Anneal", "Kl", "ChatSource"} <= {t.__name__ for t in TABLES}


@pytest.mark.parametrize(("table", "key"), KEYS, ids=[f"{table.__name__}.{key}" for table, key in KEYS])
def test_a_key_has_a_doc_line_and_an_example_where_its_values_are_not_listed(table: type[Table], key: str) -> None:
    field = table.model_fields[key]
    assert doc_lines(table)[key].endswith(".")
    annotation = field.annotation
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(inner for inner in get_args(annotation) if inner is not type(None))
    if table is not Config and annotation is not bool and get_origin(annotation) is not Literal:
        assert field.examples or table is EpochBudget


@pytest.mark.parametrize("table", TABLES, ids=lambda table: str(table.__name__))
def test_a_table_has_a_doc_line(table: type[Table]) -> None:
    assert table.__doc__
    assert table.__doc__ != Table.__doc__


def test_the_examples_of_keys_are_themselves_sound() -> None:
    for table in TABLES:
        for key, field in table.model_fields.items():
            for example in field.examples or ():
                if table is not EpochBudget:
                    table.model_validate({field.alias or key: example})


def test_the_json_schema_is_valid() -> None:
    Draft202012Validator.check_schema(config_schema())
    assert config_schema()["$schema"] == "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: str(path.name))
def test_examples_load_and_the_json_schema_accepts_them(schema: Draft202012Validator, example: Path) -> None:
    load_config(example)
    assert faults(schema, tomllib.loads(example.read_text(encoding="utf-8"))) == []


def test_the_json_schema_accepts_the_design_example(schema: Draft202012Validator) -> None:
    assert faults(schema, tomllib.loads(DESIGN)) == []


@pytest.mark.parametrize(
    "change",
    [
        'stages.0.tokens = "2B"',
        "stages.0.epochs = 1.5",
        "stages.0.epochs = { web = 1 }",
        'stages.1.fade = "50M"',
        "stages.1.fade = 50_000_000",
        'stages.1.fade = { steps = 10, shape = "cosine" }',
        "optimizer.lr = 3e-4",
        "optimizer.lr = { matrix = 0.02, rest = 3e-4 }",
        "optimizer.betas = [0.9, 0.95]",
        'optimizer.no_decay = ["norms"]',
        "checkpoint.every = 1000",
        'checkpoint.every = "1k"',
        "checkpoint.every = { minutes = 30 }",
        "checkpoint.async = false",
        'sources.web.path = ["a", "b"]',
        "sources.web.validation = 0.001",
        'sources.web.validation = "500k"',
        'sources.chat = { kind = "chat", task = "gsm8k" }',
        "run.anneal = { start = 0.9, lr = { shape = 'linear', to = 0 } }",
        "evaluate.seq_len = 512",
    ],
)
def test_the_json_schema_accepts_every_form_that_loads(schema: Draft202012Validator, change: str) -> None:
    changes = ["- stages.0.steps", change] if "stages.0." in change else [change]
    if "epochs = 1.5" in change:
        changes.append("- stages.0.mixture")
    assert faults(schema, base(*changes)) == []
    validate(base(*changes), "run.toml")


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ("runn.name = 'x'", "$"),
        ("run.nmae = 'x'", "$.run"),
        ("stages.0.mixtrue = { web = 1 }", "$.stages[0]"),
        ("stages.1.lr = { scal = 1 }", "$.stages[1].lr"),
        ("stages.1.fade = { token = 1 }", "$.stages[1].fade"),
        ("stages.0.steps = '10q'", "$.stages[0].steps"),
        ("stages.0.seq_len = 0", "$.stages[0].seq_len"),
        ("sources.web.pth = 'x'", "$.sources.web"),
        ("sources.web.kind = 'tokns'", "$.sources.web"),
        ("model.size = 'tinny'", "$.model.size"),
        ("checkpoint.background = true", "$.checkpoint"),
        ("- stages.0.name", "$.stages[0]"),
        ("- run.name", "$.run"),
        ("- sources.web.path", "$.sources.web"),
        ("- model", "$"),
    ],
)
def test_the_json_schema_refuses_what_does_not_load(schema: Draft202012Validator, change: str, where: str) -> None:
    assert faults(schema, base(change)) == [where]


def test_the_schema_lists_the_sizes_and_the_doc_line_does_too() -> None:
    properties = config_schema()["$defs"]["Model"]["properties"]["size"]
    assert properties["enum"] == [*SIZES, None]
    assert properties["description"] == f"A size by name: {', '.join(SIZES)}."


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_a_key_that_was_renamed_is_now_there_under_its_new_name(old: str, new: str) -> None:
    table = old.split(".")[0]
    keys = Key(None, Config).below(table)
    names = keys.below("any").names() if table in ("stages", "sources") else keys.names()
    assert new in names
    assert old.split(".")[1] not in names
