"""Every key is read by something: a key that nothing reads decides nothing, whatever its doc line promises.

Tables note who reads which of their keys, while runs of a few steps use as many keys as a CPU can show. What needs
another engine, a package or a second run is in `ELSEWHERE`, with the module that reads it.
"""

import ast
import json
import sys
from collections.abc import Iterator
from functools import cache
from inspect import get_annotations
from pathlib import Path
from typing import Any

import pytest

import trivium
from tests.support.command_line import trivium as run_command
from tests.support.corpus import write_source
from tests.support.streams import write_jsonl
from tests.support.tables import TABLES
from tests.support.tokenizers import byte_level, write_json, write_ranks
from trivium.config.fields import Table

PACKAGE = Path(trivium.__file__).parent
# Reading a key in order to write it down or to show it does not make it matter.
NO_READERS = (PACKAGE / "config", *(PACKAGE / "plan" / name for name in ("record.py", "export.py", "show.py")))

TRAINED = """
[run]
name = "read"
anneal = { start = 0.75, mixture = { web = 1 }, fade = { steps = 1 }, lr = { shape = "linear" } }

[model]
layers = 1
width = 64

[tokenizer]
path = "tokenizer.json"

[optimizer]
name = "muon"

[schedule]
shape = "wsd"
warmup = { tokens = 100 }
decay = { steps = 1 }

[engine]
device = "cpu"
profile = { steps = [1, 2] }

[checkpoint]
every = { minutes = 30 }

[evaluate]
every = 2
tokens = 64
weights = "both"
tasks = ["spelling"]
tasks_every = 1000
questions = 1
max_new_tokens = 2
prompts = ["The"]

[defaults]
seq_len = 64
batch_size = 2

[sources.web]
kind = "tokens"
path = "web"
validation = 0.2

[sources.pages]
kind = "text"
path = "pages"

[sources.hub]
kind = "huggingface"
dataset = "pages"

[sources.stream]
kind = "stream"
dataset = "pages"
lanes = 1

[sources.chat]
kind = "chat"
path = "chat.jsonl"

[sources.spelling]
kind = "chat"
tasks = [{ task = "spelling", size = 10, repeat = 2 }]

[sources.short]
kind = "view"
from = "pages"
min_tokens = 1
max_tokens = 1000

[[stages]]
name = "first"
steps = 2
weights = { web = 1, short = 1, hub = 1, stream = 1 }
goldfish = { k = 4, h = 2 }
average = { last = 2, every = { tokens = 128 } }

[[stages]]
name = "second"
steps = 2
fade = { steps = 1 }
sources = ["chat", "spelling"]
replay = { web = 0.2 }
rope = { scaling = "yarn", factor = 2 }
kl = { beta = 0.1, reference = { stage = "second" } }
optimizer = { name = "ademamix", lr = 1e-3, alpha_warmup = 2, beta3_warmup = 2, skip = {} }
end_average = true
"""
PLANNED = """
[run]
name = "plan"
anneal = { start = 0.9, weights = { pages = 1 } }

[model]
size = "tiny"

[tokenizer]
kind = "tiktoken"
path = "ranks.tiktoken"
special_tokens = ["<|eos|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]

[sources.pages]
kind = "text"
path = "pages"
fim = { rate = 0.5, spm = 0.5 }

[schedule]
shape = "cosine"
warmup = { fraction = 0.1 }
horizon = { steps = 50 }
extend = { at = { steps = 20 }, to = { steps = 100 } }

[defaults]
mixture = { pages = 1 }
seq_len = 64
batch_tokens = 128

[[stages]]
name = "ramp"
tokens = { per_parameter = 0.01 }
seq_len = 64
batch_size = { from = 1, to = 2, over = 64, by = 1 }

[[stages]]
name = "counted"
epochs = { pages = 1 }

[[stages]]
name = "cycles"
steps = 40
lr = { shape = "wsd", cycle = { steps = 10, decay = 2, warmup = 2 }, decay_shape = "cosine" }

[[stages]]
name = "points"
steps = 10
lr = { from = "here", points = [{ steps = 0, lr = 1.0 }, { tokens = 640, lr = 0.5, shape = "cosine" }] }

[[stages]]
name = "stable"
steps = 10
lr = { shape = "wsd", decay = { steps = 2 } }

[[stages]]
name = "falls"
steps = 100
lr = { shape = "power", exponent = 2 }
"""
MEASURED = """
[run]
name = "measured"

[model]
size = "tiny"
vocab = 512

[tokenizer]
kind = "bytes"

[engine]
device = "cpu"

[evaluate]
every = 2
tokens = 64
tasks = ["spelling"]
tasks_every = 2
questions = 1
max_new_tokens = 2

[sources.web]
kind = "tokens"
path = "web"
validation = 0.2

[defaults]
seq_len = 64
batch_size = 2

[[stages]]
name = "measured"
until = { validation = "web", below = 100.0, at_most = { steps = 6 } }

[[stages]]
name = "scored"
until = { score = "spelling", at_least = 1.0, at_most = 400 }
"""
# Keys that these runs do not come to, and the modules that read them.
ELSEWHERE = {
    ("Distill", "beta"): "plan/settings.py",
    ("Distill", "path"): "plan/shape/model.py",
    ("Distill", "precision"): "plan/settings.py",
    ("Distill", "step"): "plan/shape/model.py",
    ("Distill", "temperature"): "plan/settings.py",
    ("Distill", "top_k"): "plan/settings.py",
    ("Model", "options"): "plan/shape/foreign.py",
    ("Guard", "max_consecutive_skips"): "train/guard.py",
    ("Guard", "spike_deviations"): "train/guard.py",
    ("Model", "init_step"): "train/setup.py",
    ("Score", "at_least"): "sources/locate.py",
    ("Score", "below"): "sources/locate.py",
    ("Score", "column"): "sources/locate.py",
    ("Skip", "deviations"): "train/guard.py",
    ("Track", "project"): "train/trackers/make.py",
    ("TrainTokenizer", "vocab"): "sources/provide.py",
    ("Reference", "step"): "train/references.py",
}


@cache
def owner_of(table: type[Table], key: str) -> str:
    """The table that declares a key, which others may inherit."""
    return next(base.__name__ for base in reversed(table.__mro__) if key in get_annotations(base))


KEYS = {(owner_of(table, key), key) for table in TABLES for key in table.model_fields}


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Iterator[set[tuple[str, str]]]:
    """The keys that are read while two runs are trained and another is planned."""
    folder = tmp_path_factory.mktemp("read")
    write_source(folder / "web", [[13] * 30], dtype="uint16")
    write_jsonl(folder / "pages", [[200] * 20])
    write_json(folder / "tokenizer.json", byte_level())
    write_ranks(folder / "ranks.tiktoken")
    talk = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day"}]
    (folder / "chat.jsonl").write_text((json.dumps({"messages": talk}) + "\n") * 20)
    found: set[tuple[str, str]] = set()
    look, walk = Table.__getattribute__, Table.__iter__

    def noted(self: Table, name: str) -> Any:
        if not name.startswith("_") and name in type(self).model_fields and _is_outside(sys._getframe(1)):
            found.add((owner_of(type(self), name), name))
        return look(self, name)

    def noted_all(self: Table) -> Any:
        if _is_outside(sys._getframe(1)):
            found.update((owner_of(type(self), name), name) for name in type(self).model_fields)
        return walk(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIVIUM_CACHE", str(folder / "cache"))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setattr(Table, "__getattribute__", noted)
        patch.setattr(Table, "__iter__", noted_all)
        for command, config in ((("train",), TRAINED), (("train",), MEASURED), (("plan", "--prepare"), PLANNED)):
            (folder / "run.toml").write_text(config)
            code, _, problems = run_command(folder, *command, "run.toml")
            assert code == 0, problems
        yield found


# A property of a table reads keys for whoever asks for it; `noted` is on the way to it.
OWN = {__file__, *(str(sys.modules[table.__module__].__file__) for table in TABLES)}


def _is_outside(frame: Any) -> bool:
    """Whether a module that acts on a key reads it."""
    while frame.f_code.co_filename in OWN:
        frame = frame.f_back
    file = Path(frame.f_code.co_filename)
    return file.is_relative_to(PACKAGE) and not any(file.is_relative_to(path) for path in NO_READERS)


def test_every_key_is_read(read: set[tuple[str, str]]) -> None:
    unread = [f"{table}.{key}" for table, key in sorted(KEYS - read - set(ELSEWHERE))]
    assert not unread, f"nothing reads {', '.join(unread)}"


def test_the_list_of_other_readers_names_no_key_that_is_read_here(read: set[tuple[str, str]]) -> None:
    assert sorted(set(ELSEWHERE) & read) == []
    assert set(ELSEWHERE) <= KEYS


@pytest.mark.parametrize(("key", "module"), [(key, module) for (_, key), module in ELSEWHERE.items()])
def test_other_readers_read_what_the_list_says(key: str, module: str) -> None:
    tree = ast.parse((PACKAGE / module).read_text(encoding="utf-8"))
    names = [getattr(node, "attr", getattr(node, "value", None)) for node in ast.walk(tree)]
    assert key in names
