"""Every foreign input: how a sound one is made, and what reads it. A case changes a copy of it, and reads that."""

import contextlib
import json
import random
import shutil
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import yaml

from tests.fuzz.mutate import ODD_VALUES, change_file, change_values, flip_bytes
from tests.support.configs import two_steps

ROOT = Path(__file__).parents[2]
DOCUMENTS = [[1, 2, 3], [4, 5], [6], [7, 8, 9, 10]]
CHAT = [{"role": "user", "content": "the fox?"}, {"role": "assistant", "content": "Über dog"}]


@dataclass(frozen=True, slots=True)
class Target:
    """A folder of sound input, and how a changed copy of it is read."""

    make: Callable[[Path], None]
    read: Callable[[Path, random.Random], None]
    change: Callable[[Path, random.Random], None]


def change_one(folder: Path, rng: random.Random) -> None:
    """Change one or two of the folder's files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in rng.sample(files, min(len(files), rng.choice([1, 1, 2]))):
        change_file(path, rng)


def _make_configs(folder: Path) -> None:
    for path in (*ROOT.glob("examples/*.toml"), *ROOT.glob("examples/patterns/*.toml")):
        shutil.copy(path, folder / path.name)


def _make_dialects(folder: Path) -> None:
    known = [*ROOT.glob("docs/dialects/*.toml"), *ROOT.glob("docs/dialects/*.yaml")]
    for path in (*known, *ROOT.glob("tests/config/dialects/odd_*")):
        shutil.copy(path, folder / path.name)


def _change_config(folder: Path, rng: random.Random) -> None:
    """Leave one config, changed by its tables or by its bytes, as TOML or as YAML."""
    chosen = rng.choice(sorted(folder.iterdir()))
    content = chosen.read_bytes()
    for path in folder.iterdir():
        path.unlink()
    if rng.random() < 0.3:
        chosen.write_bytes(flip_bytes(content, rng))
        return
    tables = tomllib.loads(content.decode()) if chosen.suffix == ".toml" else yaml.safe_load(content)
    changed = change_values(tables, rng)
    try:
        text = tomli_w.dumps(changed) if chosen.suffix == ".toml" and rng.random() < 0.8 else yaml.safe_dump(changed)
    except (TypeError, AttributeError, ValueError, yaml.YAMLError):
        text = json.dumps(changed)
    chosen.with_suffix(rng.choice([chosen.suffix, ".yaml"])).write_text(text, errors="replace")


def _read_config(folder: Path, rng: random.Random) -> None:
    from trivium.config.load import load
    from trivium.plan.export import plan_json
    from trivium.plan.make import make_plan

    (path,) = folder.iterdir()
    odd = rng.choice(ODD_VALUES)
    overrides = [] if rng.random() < 0.7 else [f"{rng.choice(['seed', 'stages.0.steps', 'run.name', 'a.b'])}={odd}"]
    loaded = load(path, overrides)
    with loaded.places.named():
        plan_json(make_plan(loaded.config))


def _make_tokens(folder: Path) -> None:
    from tests.support.writers import write_bin, write_ds, write_megatron, write_npy
    from trivium.tokenfiles.manifest import MANIFEST_NAME, measure, write_manifest
    from trivium.tokenfiles.open import open_source

    write_ds(folder / "ds" / "a.ds", DOCUMENTS, loss=[1, 0, 1, 1, 1, 1, 0, 0, 1, 1])
    write_npy(folder / "npy" / "a.npy", DOCUMENTS)
    write_bin(folder / "bin" / "a.bin", DOCUMENTS)
    (folder / "bin" / "metadata.json").write_text('{"tokenized_info": {"dtype": "uint16", "tokenizer": "gpt2"}}')
    write_megatron(folder / "megatron" / "a.bin", [DOCUMENTS, DOCUMENTS])
    write_bin(folder / "padded" / "a.bin", [[1, 2, 3, 0], [4, 5, 0, 0]])
    (folder / "padded" / "a.bin.mask").write_bytes(bytes([1, 1, 1, 0, 1, 1, 0, 0]))
    (folder / "padded" / "shape.json").write_text('{"a": [2, 4]}')
    packed = folder / "packed"
    packed.mkdir()
    np.save(packed / "a_token.npy", np.arange(10, dtype=np.uint16))
    np.save(packed / "a_index.npy", np.array([[0, 3], [3, 10]], np.int64))
    np.save(packed / "a_mask.npy", np.ones(10, np.bool_))
    write_ds(folder / "listed" / "a.ds", DOCUMENTS)
    write_manifest(measure(open_source(folder / "listed")), folder / "listed" / MANIFEST_NAME)


def _change_tokens(folder: Path, rng: random.Random) -> None:
    kept = rng.choice(sorted(folder.iterdir()))
    for path in folder.iterdir():
        if path != kept:
            shutil.rmtree(path)
    change_one(kept, rng)


def _read_tokens(folder: Path, rng: random.Random) -> None:
    from trivium.rows.blocks import FileBlocks
    from trivium.tokenfiles.manifest import manifest_of, verify
    from trivium.tokenfiles.open import TokenFileSettings, open_source

    (source,) = folder.iterdir()
    asked = TokenFileSettings(rng.choice([None, "uint16", "int32"]), rng.choice([None, None, 3]))
    files = open_source(source, asked, folder / ".cache")
    manifest = manifest_of(files, source, folder / ".cache")
    verify(manifest, files)
    FileBlocks("web", files, manifest.fingerprint, 4, 2).count()


def _make_texts(folder: Path) -> None:
    import gzip

    from tests.support.texts import write_lines, write_parquet

    texts = ["one", "zwölf Boxkämpfer", "", "line\nbreak", "x" * 300]
    for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl.zst", "d.json"):
        write_lines(folder / name, texts)
    write_parquet(folder / "e.parquet", [*texts, None], row_group=2)
    (folder / "f.txt").write_text("a text")
    (folder / "g.txt.gz").write_bytes(gzip.compress(b"packed"))


def _read_texts(folder: Path, rng: random.Random) -> None:
    from trivium.textfiles.documents import TextDocuments
    from trivium.textfiles.inputs import list_inputs

    documents = TextDocuments("web", list_inputs([str(folder)]), rng.choice(["text", "text", "id", "none"]), 1.0)
    for _ in documents.read(lambda _: None):
        pass
    list(documents.bad.lines())


def _make_chats(folder: Path) -> None:
    with open(folder / "chat.jsonl", "w") as file:
        for conversation in (CHAT, {"messages": CHAT}, [*CHAT, {"role": "tool", "content": "x", "tool_call_id": "1"}]):
            file.write(json.dumps(conversation) + "\n")


def _read_chats(folder: Path, _rng: random.Random) -> None:
    from trivium.text.chat import render, render_prompt
    from trivium.text.tokenizer import ByteTokenizer
    from trivium.textfiles.read import BadLineError, parse_line, read_raw_lines

    for path in folder.iterdir():
        for line in read_raw_lines(path):
            try:
                record = parse_line(line)
            except BadLineError:
                continue
            for act in (render, render_prompt):
                _tried(lambda act=act, record=record: act(record, ByteTokenizer()))  # type: ignore[misc]


def _tried(act: Callable[[], object]) -> None:
    from trivium.errors import TriviumError

    with contextlib.suppress(TriviumError):
        act()


def _make_tokenizers(folder: Path) -> None:
    from tests.support.tokenizers import byte_level, piece_level, write_json, write_ranks

    for name, described in (("bytes", byte_level()), ("pieces", piece_level()), ("unigram", piece_level("Unigram"))):
        (folder / name).mkdir()
        write_json(folder / name / "tokenizer.json", described)
        template = "{% for m in messages %}{{ m.role ~ m.content }}{% endfor %}"
        said = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": template}
        write_json(folder / name / "tokenizer_config.json", said)
    (folder / "tiktoken").mkdir()
    write_ranks(folder / "tiktoken" / "a.tiktoken")


def _read_tokenizer(folder: Path, rng: random.Random) -> None:
    from tests.support.tokenizers import TRIED
    from trivium.config.schema import Tokenizer
    from trivium.text.chat import render
    from trivium.text.fast_bpe import make_fast
    from trivium.text.file_tokenizer import FileTokenizer
    from trivium.text.tokenizer import open_tokenizer
    from trivium.text.tokenizer_export import tokenizer_files

    (kept,) = folder.iterdir()
    opened = open_tokenizer(Tokenizer(kind="tiktoken" if kept.name == "tiktoken" else "huggingface", path=str(kept)))
    assert opened is not None
    tokens = opened.encode([*TRIED, "<s>"])
    for each in tokens:
        opened.decode(each.tolist())
    assert opened.fingerprint
    opened.token_bytes(min(opened.vocab, 10**6))
    _tried(lambda: render(CHAT, opened))
    if isinstance(opened, FileTokenizer):
        make_fast(opened, TRIED)
    if rng.random() < 0.3:
        tokenizer_files(opened, 128, ())


def _make_models(folder: Path) -> None:
    from safetensors.numpy import save_file

    from trivium.model.families.table import family_of
    from trivium.model.huggingface import write_config
    from trivium.model.spec import ModelSpec, RopeSpec

    spec = ModelSpec(layers=1, width=8, heads=2, kv_heads=1, head_dim=4, ffn=8, vocab=16, max_seq_len=32)
    rope = RopeSpec(scaling="yarn", factor=2.0, original_seq_len=16)
    gemma = replace(spec, norm="both", qk_norm=True, embedding_scale=8**0.5, activation="gelu_tanh")
    by_type = replace(gemma, layers=2, window=4, sliding=(0,), rope=replace(rope, sliding=RopeSpec(500.0)))
    specs = {"types": by_type, "one": spec, "many": replace(spec, rope=rope)}
    for name, each in specs.items():
        (folder / name).mkdir()
        write_config(folder / name, each, each.rope, 32)
        family = family_of(each, each.rope)
        arrays = {family.their_name(key): np.zeros(shape, np.float32) for key, shape in MODEL_SHAPES.items()}
        save_file(arrays, folder / name / "model.safetensors")
        (folder / name / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    index = {"metadata": {}, "weight_map": dict.fromkeys(arrays, "model.safetensors")}
    (folder / "many" / "model.safetensors.index.json").write_text(json.dumps(index))


MODEL_SHAPES = {"embedding.weight": [16, 8], "norm.weight": [8], "layers.0.attention.query.weight": [8, 8]}


def _read_model(folder: Path, _rng: random.Random) -> None:
    from trivium.ask.open import _configured_ends
    from trivium.model.folder import read_spec
    from trivium.model.huggingface import read_family
    from trivium.model.huggingface_files import fitting_files, open_tensors
    from trivium.model.rotary import rotary_tables

    (kept,) = folder.iterdir()
    _tried(lambda: _configured_ends(kept))
    spec = read_spec(kept)
    rotary_tables(spec.rope, min(spec.head_dim, 64), 8)
    for name, path in fitting_files(kept, MODEL_SHAPES, read_family(kept), spec).items():
        with open_tensors(path, "np") as file:
            file.get_tensor(sorted(file.keys())[0])
        assert name in MODEL_SHAPES


def _make_runs(folder: Path) -> None:
    from tests.support.runs import eventful_run

    eventful_run(folder / "made")


def _read_runs(folder: Path, _rng: random.Random) -> None:
    from trivium.report.compare import compare_runs, show_changes
    from trivium.report.page import write_report
    from trivium.run.listing import list_runs, show_runs
    from trivium.screen import terminal

    console = terminal()
    console.quiet = True
    show_runs(list_runs(folder), console)
    for run in sorted(path for path in folder.iterdir() if path.is_dir()):
        _tried(lambda run=run: write_report([run], folder / "report.html"))  # type: ignore[misc]
        _tried(lambda run=run: show_changes(compare_runs([run]), console))  # type: ignore[misc]


def _make_checkpoints(folder: Path) -> None:
    """A run of two steps; its folder is all that is changed."""
    from tests.support.corpus import write_source
    from trivium.train.trainer import Trainer

    with contextlib.chdir(folder):
        write_source(folder / "data", [[8, 9, 10] * 10], "uint16")
        (folder / "run.toml").write_text(two_steps("tokens"))
        Trainer("run.toml", show=False).run()
    shutil.rmtree(folder / "data")


def _change_checkpoint(folder: Path, rng: random.Random) -> None:
    """Change a file of the checkpoint, and half of the time list it with its new hash: damage, or a stranger's work."""
    from trivium.files import hash_file

    checkpoint = next(folder.rglob("COMPLETE")).parent
    change_one(checkpoint, rng)
    complete = checkpoint / "COMPLETE"
    if rng.random() < 0.7 and complete.is_file():
        files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path != complete)
        facts = {
            path.relative_to(checkpoint).as_posix(): {"bytes": path.stat().st_size, "hash": hash_file(path)}
            for path in files
        }
        complete.write_text(json.dumps({"files": facts}))


def _read_checkpoint(folder: Path, _rng: random.Random) -> None:
    from trivium.ask.open import open_model
    from trivium.plan.inherit import inherited
    from trivium.run.folder import find_checkpoint

    run = folder / "runs" / "run"
    checkpoint = find_checkpoint(run, None)
    _tried(checkpoint.refuse_damaged)
    _tried(checkpoint.state)
    _tried(lambda: inherited(_starting_from(run)))
    open_model(run)


def _starting_from(run: Path) -> Any:
    from trivium.config.load import validate

    raw = tomllib.loads(two_steps("tokens")) | {"model": {"init": str(run)}}
    return validate(raw, "run.toml")[0]


PARTS = (
    *(
        "{{ messages }}",
        "{{ messages[0].content }}",
        "{% for m in messages %}",
        "{% endfor %}",
        "{% if m %}",
        "{% endif %}",
    ),
    *(
        "{{ m.role ~ m.content }}",
        "{% set x = x + x %}",
        "{% set ns = namespace(a=[]) %}",
        "{% set ns.a = [ns.a, ns.a] %}",
    ),
    *("{{ x * 9999 }}", "{{ 'a' * 99999999 }}", "{{ 2 ** 99999 }}", "{{ x | replace('a', x) }}", "{{ x | join(x) }}"),
    *(
        "{% macro f(n) %}",
        "{% endmacro %}",
        "{{ f(f) }}",
        "{{ f(3) ~ f(2) }}",
        "{% for i in range(99999) %}",
        "{{ loop }}",
    ),
    *(
        "{% generation %}",
        "{% endgeneration %}",
        "{{ x | tojson(indent=9) }}",
        "{{ x.__class__ }}",
        "{{ x | attr('format') }}",
    ),
    *(
        "{{ '%s' % x }}",
        "{{ '{0}{0}'.format(x) }}",
        "{{ x[1:] }}",
        "{{ x[::-1] | list }}",
        "{{ x | map('upper') | list }}",
    ),
    *(
        "{% set x = 'ab' %}",
        "{% set x = messages %}",
        "{{ 1 / 0 }}",
        "{% break %}",
        "{% include x %}",
        "{{ x | center(999) }}",
    ),
    *(
        "{% call f(x) %}",
        "{% endcall %}",
        "{{ x == messages }}",
        "{{ x | sort | unique | batch(3) | list }}",
        "(",
        "{{",
        "%}",
    ),
    *(
        "{% set x %}",
        "{% endset %}",
        "{{ x.split('a') }}",
        "{{ raise_exception(x) }}",
        "{{ dict(a=x) }}",
        "{{ x | sum }}",
    ),
    *("{{ bos_token }}", "{# x", "{{ x | round(9) }}", "{{ x | indent(99) }}", "{% filter upper %}", "{% endfilter %}"),
)


def _make_nothing(_folder: Path) -> None:
    """A template is made of parts, and has no folder."""


def _read_template(_folder: Path, rng: random.Random) -> None:
    from trivium.text.chat_template import ChatTemplate

    source = "".join(rng.choice(PARTS) for _ in range(rng.choice([1, 3, 8, 20])))
    if rng.random() < 0.5:  # close what is open, so that more of them are templates
        source = f"{{% set x = 'ab' %}}{{% for m in messages %}}{source}{{% endfor %}}"
    template = ChatTemplate(source, {"bos_token": "<s>"})
    template.write(CHAT, add_generation_prompt=rng.random() < 0.5)


def _leave(folder: Path, rng: random.Random) -> None:
    """Nothing is on disk."""


TARGETS = {
    "configs": Target(_make_configs, _read_config, _change_config),
    "dialects": Target(_make_dialects, _read_config, _change_config),
    "token files": Target(_make_tokens, _read_tokens, _change_tokens),
    "texts": Target(_make_texts, _read_texts, change_one),
    "conversations": Target(_make_chats, _read_chats, change_one),
    "tokenizers": Target(_make_tokenizers, _read_tokenizer, _change_tokens),
    "models": Target(_make_models, _read_model, _change_tokens),
    "runs": Target(_make_runs, _read_runs, change_one),
    "checkpoints": Target(_make_checkpoints, _read_checkpoint, _change_checkpoint),
    "templates": Target(_make_nothing, _read_template, _leave),
}
