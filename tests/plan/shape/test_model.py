"""A config, its tokenizer and its base -> the model's shape, and the rotary positions of every stage."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.batches import TINY
from tests.support.corpus import write_source
from tests.support.plans import plan_of
from trivium.config.schema import SIZES, Model
from trivium.errors import PlanError
from trivium.model.folder import write_spec
from trivium.model.spec import ModelSpec, RopeSpec
from trivium.plan.export import objective_lines, stage_json
from trivium.plan.plan import Plan
from trivium.plan.record import first_difference
from trivium.plan.shape.model import model_spec
from trivium.run.folder import RunFolder

MILLION = 1e6
NAMED = {"10m": 10, "60m": 60, "125m": 125, "350m": 350, "760m": 760, "1b": 1e3, "3b": 3e3, "8b": 8e3, "70b": 70e3}
VOCAB = {"size": "tiny", "vocab": 256}
YARN: dict[str, Any] = {"scaling": "yarn", "factor": 4.0}
THETA = {"theta": 5e5}


def test_a_width_alone_gives_heads_of_64_and_a_feed_forward_of_eight_thirds() -> None:
    spec = model_spec(Model(layers=6, width=256), vocab=8192, max_seq_len=512)
    assert spec == ModelSpec(
        layers=6, width=256, heads=4, kv_heads=4, head_dim=64, ffn=704, vocab=8192, max_seq_len=512
    )


def test_what_is_given_is_kept() -> None:
    model = Model(layers=2, width=64, heads=4, kv_heads=2, ffn=100, tied_embeddings=True, qk_norm=True)
    spec = model_spec(model, vocab=300, max_seq_len=99)
    assert (spec.heads, spec.kv_heads, spec.head_dim, spec.ffn) == (4, 2, 16, 100)
    assert (spec.vocab, spec.padded_vocab, spec.max_seq_len) == (300, 384, 99)
    assert spec.tied_embeddings
    assert spec.qk_norm
    other = model_spec(Model(layers=4, width=64, norm_eps=1e-5, no_rope_every=2), vocab=300, max_seq_len=99)
    assert other.norm_eps == 1e-5
    assert other.rope.dropped == (1, 3)


def test_layers_are_what_the_config_says() -> None:
    written: dict[str, Any] = {"norm": "both", "activation": "xielu", "gated": False, "qkv_bias": True, "rotary_dim": 8}
    numbers: dict[str, Any] = {
        "attention_scale": 0.5,
        "attention_softcap": 2.0,
        "logit_softcap": 3.0,
        "logit_scale": 0.7,
        "embedding_scale": 8.0,
    }
    model = Model(layers=6, width=64, heads=4, qk_norm="joint", window=99, layers_pattern="SSL", **written, **numbers)
    spec = model_spec(model, vocab=300, max_seq_len=99)
    assert (spec.window, spec.sliding, spec.qk_norm, spec.qk_norm_joint) == (99, (0, 1, 3, 4), True, True)
    assert {key: getattr(spec, key) for key in written | numbers} == written | numbers
    assert model_spec(Model(layers=3, width=64, window=9), vocab=300, max_seq_len=99).sliding == (0, 1, 2)
    assert model_spec(Model(layers=5, width=64, window=9, layers_pattern="SL"), 300, 99).sliding == (0, 2, 4)


@pytest.mark.parametrize("name", NAMED)
def test_a_size_has_the_parameters_of_its_name(name: str) -> None:
    spec = model_spec(Model(size=name), vocab=8192 if name == "10m" else 32_768, max_seq_len=2048)
    assert spec.parameters / MILLION == pytest.approx(NAMED[name], rel=0.15)


def test_every_size_divides_into_even_heads() -> None:
    for size in SIZES.values():
        assert size.width % size.heads == 0
        assert size.width // size.heads % 2 == 0
        assert size.heads % size.kv_heads == 0


def test_a_head_may_be_wider_than_its_part_of_the_width() -> None:
    plain = model_spec(Model(layers=2, width=64, heads=4), vocab=100, max_seq_len=16)
    wide = model_spec(Model(layers=2, width=64, heads=4, head_dim=32, norm_eps=1e-5), vocab=100, max_seq_len=16)
    assert (plain.head_dim, plain.norm_eps, wide.head_dim, wide.norm_eps) == (16, 1e-6, 32, 1e-5)
    assert wide.layer_matrices - plain.layer_matrices == 4 * 64 * 4 * 16


def shape(*stages: dict[str, Any], **tables: Any) -> ModelSpec:
    """The shape that a plan of such stages has."""
    spec = plan_of(*stages, **{"model": VOCAB, **tables}).model
    assert spec is not None
    return spec


def ropes(plan: Plan) -> list[RopeSpec]:
    """The rotary positions of every stage."""
    return [rope for stage in plan.stages if (rope := stage.rope) is not None]


def base_run(folder: Path, spec: ModelSpec) -> Path:
    """A Hugging Face folder's place is taken by a run's: a checkpoint of which the model's shape alone is there."""
    run, plan = RunFolder(folder), plan_of({"steps": 5}, model=VOCAB)
    run.fresh_draft(5)
    (run.draft_path(5) / "engine").mkdir()
    write_spec(run.draft_path(5) / "engine", spec)
    raw = plan.config.model_dump(mode="json", exclude_none=True, exclude_unset=True)
    loader = {"record": plan.record(5), "fingerprint": plan.fingerprint(5)}
    run.commit(5, {"config": raw, "stage": 0, "loader": loader, "settings": {}}, {})
    return folder


def test_the_longest_row_is_that_of_the_merged_stages() -> None:
    defaults = {"mixture": {"web": 1.0}, "seq_len": 8192}
    assert shape({"steps": 5}, defaults=defaults).max_seq_len == 8192
    assert shape({"steps": 5}, {"steps": 5, "seq_len": 64}).max_seq_len == 64
    assert shape({"steps": 5}, model={**VOCAB, "max_seq_len": 4096}).max_seq_len == 4096


def test_the_vocabulary_is_the_configs_else_the_tokenizers() -> None:
    tokenizer = {"kind": "bytes"}
    assert shape({"steps": 5}, tokenizer=tokenizer).vocab == 256
    assert shape({"steps": 5}, model={"size": "tiny"}, tokenizer=tokenizer).vocab == 266


def test_without_any_vocabulary_the_shape_is_a_gap_and_the_rest_is_planned() -> None:
    plan = plan_of({"steps": 5})
    assert plan.model is None
    assert str(plan.gaps[-1]) == "model.vocab: is missing, and no tokenizer gives it. Write it, or name a tokenizer."
    assert plan.total_steps == 5
    assert ropes(plan) == [RopeSpec()]


def test_a_tokenizer_that_is_not_there_leaves_the_shape_open(tmp_path: Path) -> None:
    plan = plan_of({"steps": 5}, tokenizer={"path": str(tmp_path / "nowhere.json")})
    assert plan.model is None
    assert plan.gaps[-1].where == "tokenizer.path"


def test_a_folder_gives_its_shape_and_the_config_its_rotary_positions(tmp_path: Path) -> None:
    base = base_run(tmp_path / "base", TINY)
    model = {"init": str(base), "rope": {"theta": 5e5}, "max_seq_len": 4096}
    expected = replace(TINY, max_seq_len=4096, rope=RopeSpec(5e5))
    assert shape({"steps": 5}, model=model) == expected


def test_weights_with_fewer_tokens_than_the_tokenizer_grow_with_a_warning(tmp_path: Path) -> None:
    base = base_run(tmp_path / "base", replace(TINY, vocab=200))
    model, tokenizer = {"init": str(base)}, {"kind": "bytes"}
    plan = plan_of({"steps": 5}, model=model, tokenizer=tokenizer)
    assert plan.model is not None
    assert plan.model.vocab == plan.stages[0].vocab == 266
    assert str(plan.warnings[-1]) == (
        "model.vocab: the weights of model.init know 200 tokens and the tokenizer has 266: 66 rows are new, the mean "
        "of the others. Write model.vocab = 266 if that is meant."
    )
    assert not plan_of({"steps": 5}, model=model | {"vocab": 266}, tokenizer=tokenizer).warnings


def test_a_source_with_more_ids_than_the_weights_is_refused(tmp_path: Path) -> None:
    base = base_run(tmp_path / "base", replace(TINY, vocab=200))
    web = {"web": {"kind": "tokens", "path": str(write_source(tmp_path / "web", [[100, 101]]))}}
    with pytest.raises(PlanError) as refusal:
        plan_of({"steps": 5}, model={"init": str(base)}, sources=web)
    what = "holds the token id 200, the model knows 0 to 199. Tokenise with the model's tokenizer."
    assert str(refusal.value) == f"sources.web: {what}"


def test_weights_whose_shape_cannot_be_read_are_refused(tmp_path: Path) -> None:
    base = base_run(tmp_path / "base", TINY)
    path = base / "checkpoints" / "step-00000005" / "engine" / "engine.json"
    assert path.is_file()
    path.write_text("{")
    with pytest.raises(PlanError) as refusal:
        plan_of({"steps": 5}, model={"init": str(base)})
    assert [problem.where for problem in refusal.value.problems] == ["model.init"]
    assert str(path) in str(refusal.value)


def test_a_later_stage_changes_no_earlier_stages_rotary_positions() -> None:
    stages = ({"steps": 5}, {"steps": 5, "seq_len": 64, "rope": YARN})
    longer = (*stages, {"steps": 5, "seq_len": 256, "rope": {**YARN, "factor": 16.0}})
    before, after = (plan_of(*each, model=VOCAB) for each in (stages, longer))
    assert ropes(before) == ropes(after)[:2]
    assert before.fingerprint(10) == after.fingerprint(10)


@pytest.mark.parametrize(
    ("stages", "model", "expected"),
    [
        ([{}, {"seq_len": 64, "rope": YARN}], {}, [0, 16]),
        ([{}, {"seq_len": 32}, {"seq_len": 128, "rope": YARN}], {}, [0, 0, 32]),
        # Rows of a stage that stretches are longer than what it stretches: they are not the original context.
        ([{}, {"seq_len": 64, "rope": YARN}, {"seq_len": 256, "rope": YARN}], {}, [0, 16, 16]),
        ([{"seq_len": 64, "rope": YARN}, {"seq_len": 128}], {}, [64, 64]),
        ([{"seq_len": 64, "rope": YARN}, {"seq_len": 32, "rope": {"theta": 1e4}}], {}, [64, 64]),
        # Without stretching it has been trained with longer rows since.
        ([{}, {"seq_len": 64, "rope": YARN}, {"seq_len": 96, "rope": THETA}, {"rope": YARN}], {}, [0, 16, 16, 96]),
        ([{}, {"seq_len": 64, "rope": YARN}, {"seq_len": 8, "rope": THETA}, {"rope": YARN}], {}, [0, 16, 16, 16]),
        ([{}, {"seq_len": 64}], {"rope": YARN}, [16, 16]),
        ([{}, {"seq_len": 64, "rope": YARN}], {"max_seq_len": 48}, [0, 48]),
        ([{}, {"seq_len": 64, "rope": {**YARN, "original_seq_len": 24}}], {"max_seq_len": 48}, [0, 24]),
        ([{}, {"seq_len": 64, "rope": {**YARN, "factor": 8.0}}], {"rope": {**YARN, "original_seq_len": 24}}, [24, 24]),
        ([{}, {"seq_len": 64, "rope": {"theta": 5e5}}], {"max_seq_len": 64}, [0, 0]),
    ],
)
def test_what_is_stretched_is_the_context_trained_with_until_then(
    stages: list[dict[str, Any]], model: dict[str, Any], expected: list[int]
) -> None:
    plan = plan_of(*({"steps": 5, **stage} for stage in stages), model={**VOCAB, **model})
    assert [rope.original_seq_len for rope in ropes(plan)] == expected


@pytest.mark.parametrize(("rows", "expected"), [(16, 48), (64, 64)])
def test_of_given_weights_their_own_context_is_stretched(tmp_path: Path, rows: int, expected: int) -> None:
    base = base_run(tmp_path / "base", replace(TINY, max_seq_len=48))
    stages = {"steps": 5, "seq_len": rows}, {"steps": 5, "seq_len": 256, "rope": YARN}
    assert ropes(plan_of(*stages, model={"init": str(base)}))[1].original_seq_len == expected
    scaled = RopeSpec(5e5, "llama3", 8.0, original_seq_len=32)
    base = base_run(tmp_path / "scaled", replace(TINY, rope=scaled))
    plan = plan_of(*stages, model={"init": str(base)})
    assert ropes(plan) == [scaled, RopeSpec(5e5, "yarn", 4.0, original_seq_len=32)]
    between = {**stages[0], "rope": THETA}
    assert ropes(plan_of(between, stages[1], model={"init": str(base)}))[1].original_seq_len == max(rows, 32)


WINDOW = {**VOCAB, "window": 8, "layers_pattern": "SL"}
SLIDING: dict[str, Any] = {"steps": 5, "seq_len": 64}


@pytest.mark.parametrize(
    ("model", "stages", "expected"),
    [
        ({"rope": {"theta": 5e5}}, [{}], [RopeSpec(5e5)]),
        ({"rope": {"theta": 5e5, "sliding": {"theta": 1e5}}}, [{}], [RopeSpec(5e5, sliding=RopeSpec(1e5))]),
        (
            {"rope": {"theta": 5e5}},
            [{"seq_len": 16}, {"rope": YARN}, {}, {"rope": {"theta": 1e6}}],
            [
                RopeSpec(5e5),
                *[RopeSpec(5e5, "yarn", 4.0, 16, sliding=RopeSpec(5e5))] * 2,
                RopeSpec(1e6, original_seq_len=16, sliding=RopeSpec(5e5)),
            ],
        ),
        (
            {},
            [{"seq_len": 16}, {"rope": {**YARN, "sliding": YARN}}],
            [RopeSpec(), RopeSpec(1e4, "yarn", 4.0, 16)],
        ),
        (
            {"rope": {"sliding": {"theta": 1e5}}},
            [{"seq_len": 16}, {"rope": {**YARN, "sliding": {"scaling": "linear", "factor": 2.0}}}],
            [
                RopeSpec(sliding=RopeSpec(1e5)),
                RopeSpec(1e4, "yarn", 4.0, 16, sliding=RopeSpec(1e5, "linear", 2.0, 16)),
            ],
        ),
    ],
    ids=["theta is for all", "of their own", "a stage keeps them", "the same for both", "key by key"],
)
def test_sliding_layers_keep_their_positions_unless_they_are_given_others(
    model: dict[str, Any], stages: list[dict[str, Any]], expected: list[RopeSpec]
) -> None:
    assert ropes(plan_of(*({**SLIDING, **stage} for stage in stages), model=WINDOW | model)) == expected


def test_of_given_weights_sliding_layers_keep_their_positions(tmp_path: Path) -> None:
    sliding = replace(TINY, window=4, sliding=(0,))
    base = base_run(tmp_path / "sliding", sliding)
    (rope,) = ropes(plan_of({"steps": 5, "seq_len": 64, "rope": YARN}, model={"init": str(base)}))
    assert rope == RopeSpec(1e4, "yarn", 4.0, 16, sliding=RopeSpec(1e4))
    plan = plan_of({"steps": 5, "seq_len": 64, "rope": YARN}, model={"init": str(base)})
    assert objective_lines([stage_json(plan, stage) for stage in plan.stages]) == [
        "stage-0: rope theta 10,000, yarn by 4 of 16, sliding layers theta 10,000"
    ]
    plain = base_run(tmp_path / "plain", TINY)
    stage = {"steps": 5, "rope": {"sliding": {"theta": 1e5}}}
    with pytest.raises(PlanError, match=r"stages\[0\]\.rope\.sliding: is given, but no layer of the model slides"):
        plan_of(stage, model={"init": str(plain)})


def test_the_record_has_windows_and_the_positions_of_sliding_layers() -> None:
    plan = plan_of({**SLIDING, "seq_len": 16}, {**SLIDING, "rope": YARN}, model=WINDOW)
    record = plan.record(10)
    assert (record["model.window"], record["model.sliding"]) == (8, [0])
    assert record["stages[1].rope.sliding"] == {"theta": 1e4}
    other = plan_of({**SLIDING, "seq_len": 16}, {**SLIDING, "rope": YARN}, model=WINDOW | {"window": 9})
    assert str(first_difference(record, other.record(10))) == "model.window was 8 and is now 9"


def test_llama3_scaling_is_asked_for_by_its_two_limits() -> None:
    asked = {"theta": 5e5, "scaling": "llama3", "factor": 32.0, "original_seq_len": 8192, "high_freq_factor": 8.0}
    (rope,) = ropes(plan_of({"steps": 5}, model={**VOCAB, "rope": asked}))
    assert rope == RopeSpec(5e5, "llama3", 32.0, 8192, high_freq_factor=8.0)


def test_the_record_has_the_resolved_shape_and_rotary_positions() -> None:
    plan = plan_of({"steps": 5}, {"steps": 5, "seq_len": 64, "rope": YARN}, model={**VOCAB, "rope": {"theta": 5e5}})
    record = plan.record(10)
    resolved = {key: record[f"model.{key}"] for key in ("layers", "head_dim", "vocab", "norm_eps", "init_std")}
    assert resolved == {"layers": 2, "head_dim": 32, "vocab": 256, "norm_eps": 1e-6, "init_std": 0.02}
    assert {key: value for key, value in record.items() if ".rope." in key} == {
        "stages[0].rope.theta": 5e5,
        "stages[1].rope.theta": 5e5,
        "stages[1].rope.scaling": "yarn",
        "stages[1].rope.factor": 4.0,
        "stages[1].rope.original_seq_len": 16,
        "stages[1].rope.beta_fast": 32.0,
        "stages[1].rope.beta_slow": 1.0,
    }
    assert not [key for key in record if "max_seq_len" in key]


def test_a_stage_that_asks_for_no_rope_keeps_that_of_the_stage_before() -> None:
    stages = (
        {"steps": 5},
        {"steps": 5, "rope": {"theta": 5e5}},
        {"steps": 5},
        {"steps": 5, "seq_len": 64, "rope": YARN},
        {"steps": 5},
        {"steps": 5, "rope": {"theta": 1e4}},
    )
    found = ropes(plan_of(*stages))
    assert [rope.theta for rope in found] == [1e4, 5e5, 5e5, 5e5, 5e5, 1e4]
    assert [rope.scaling for rope in found] == [None, None, None, "yarn", "yarn", None]
    assert found[4] == found[3]


def test_a_stage_drops_the_positions_of_layers_and_later_stages_keep_that() -> None:
    stages = (
        {"steps": 5},
        {"steps": 5, "rope": {"drop_layers": [1, 0]}},
        {"steps": 5, "rope": {"theta": 5e5}},
        {"steps": 5, "rope": {"drop_layers": []}},
    )
    plan = plan_of(*stages, model=VOCAB)
    assert [rope.dropped for rope in ropes(plan)] == [(), (0, 1), (0, 1), ()]
    assert plan.record(7)["stages[1].rope.dropped"] == [0, 1]


def test_a_dropped_layer_that_the_model_does_not_have_is_refused() -> None:
    layers = SIZES["tiny"].layers
    with pytest.raises(PlanError) as error:
        plan_of({"steps": 5, "rope": {"drop_layers": [1, layers]}}, model=VOCAB)
    what = f"has {layers}, and the model's last layer is {layers - 1}. Lower it."
    assert str(error.value) == f"stages[0].rope.drop_layers: {what}"


def test_what_is_frozen_stays_frozen_until_it_is_thawed() -> None:
    both = ["layers.0", "layers.1.attention", "layers.1.feed_forward"]
    stages: list[dict[str, Any]] = [{"freeze": both}, {}, {"freeze": []}, {}]
    plan = plan_of(*({"steps": 5, **each} for each in stages), model={"size": "tiny", "vocab": 300})
    assert [stage.freeze for stage in plan.stages] == [("attention", "feed_forward")] * 2 + [()] * 2
    recorded = plan.record(20)
    assert recorded["stages[1].freeze"] == ["attention", "feed_forward"]
    assert "stages[2].freeze" not in recorded


def test_a_vocabulary_grows_and_stays() -> None:
    plan = plan_of({"steps": 5}, {"steps": 5, "vocab": 310}, {"steps": 5}, model={"size": "tiny", "vocab": 300})
    assert [stage.vocab for stage in plan.stages] == [300, 310, 310]
    assert plan.model is not None
    assert plan.largest_vocab == 310
    assert (plan.record(5).get("stages[1].vocab"), plan.record(6)["stages[1].vocab"]) == (None, 310)
    work = [plan.flops_per_token(stage) or 0.0 for stage in plan.stages]
    assert work[0] < work[1] == work[2]


def test_parts_and_vocabularies_that_cannot_be_are_refused_all_at_once() -> None:
    with pytest.raises(PlanError) as refusal:
        plan_of(
            {"steps": 5, "freeze": ["layer.3", "layers.0-7", "layers.1-0"]},
            {"steps": 5, "freeze": ["embedding", "unembedding", "norm", "layers.0-1"], "vocab": 310},
            {"steps": 5, "vocab": 310},
            model={"size": "tiny", "vocab": 300},
        )
    parts = "embedding, unembedding, norm, attention, feed_forward, layers.3, layers.0-11, layers.0-11.attention"
    grows = "a vocabulary only grows. Write more, or leave it out."
    assert str(refusal.value).splitlines() == [
        f'stages[0].freeze: "layer.3" is not a part of the model. Write one of {parts}.',
        'stages[0].freeze: "layers.0-7" goes beyond the model, whose last layer is 1. Write layers.0-1 or less.',
        'stages[0].freeze: "layers.1-0" ends before it begins. Write layers.0-1.',
        "stages[1].freeze: freezes the whole model, so that nothing would be trained. Leave out a part.",
        f"stages[2].vocab: is 310, and the model knows 310 tokens before this stage: {grows}",
    ]


def test_rows_that_ranks_would_share_unevenly_are_refused_before_the_stage_that_adds_them() -> None:
    model = {"family": "llama", "layers": 2, "width": 64, "heads": 4, "vocab": 300}
    shared: dict[str, Any] = {"engine": {"parallel": {"tensor": 2}}}
    plan_of({"steps": 5}, {"steps": 5, "vocab": 310}, model=model, **shared)
    plan_of({"steps": 5}, {"steps": 5, "vocab": 311}, model={"size": "tiny", "vocab": 300}, **shared)  # has padding
    with pytest.raises(PlanError) as refusal:
        plan_of({"steps": 5}, {"steps": 5, "vocab": 311}, model=model, **shared)
    what = "is 311, and engine.parallel.tensor = 2 does not divide 311 rows of the vocabulary"
    assert str(refusal.value) == f"stages[1].vocab: {what}. Write more tokens, or lower the axis."


def test_a_source_may_have_ids_that_only_its_stage_knows(tmp_path: Path) -> None:
    sources = {
        name: {"kind": "tokens", "path": str(write_source(tmp_path / name, [[length]]))}
        for name, length in (("web", 100), ("chat", 306))
    }
    model = {"size": "tiny", "vocab": 300}
    first = {"steps": 1, "mixture": {"web": 1.0}, "seq_len": 8, "batch_size": 2}
    second = first | {"mixture": {"chat": 1.0}, "vocab": 310}
    plan = plan_of(first, second, model=model, sources=sources)
    assert plan.stages[1].vocab == 310
    with pytest.raises(PlanError) as refusal:
        plan_of(first | {"mixture": {"web": 0.5, "chat": 0.5}}, second, model=model, sources=sources)
    what = "holds the token id 305, the model knows 0 to 299 in stage-0"
    fix = "Write vocab = 306 or more there, or read the source in later stages alone."
    assert str(refusal.value) == f"sources.chat: {what}. {fix}"


def test_a_teacher_is_looked_at(tmp_path: Path) -> None:
    teacher = base_run(tmp_path / "teacher", replace(TINY, vocab=300, layers=4))
    model = {"size": "tiny", "vocab": 300}
    asked = {"path": str(teacher), "beta": 0.5}
    plan = plan_of({"steps": 5}, {"steps": 5, "distill": asked}, model=model)
    assert plan.stages[1].teacher == replace(TINY, vocab=300, layers=4)
    work = [plan.flops_per_token(stage) or 0.0 for stage in plan.stages]
    assert work[1] == work[0] + replace(TINY, vocab=300, layers=4).forward_flops(plan.stages[1].seq_len)
    missing = plan_of({"steps": 5, "distill": asked | {"path": str(tmp_path / "nowhere")}}, model=model)
    gap = f"stages[0].distill.path: {tmp_path / 'nowhere'}: has no checkpoint: its shape is not known."
    assert gap in map(str, missing.gaps)
    with pytest.raises(PlanError) as refusal:
        plan_of(
            {"steps": 5, "distill": asked, "vocab": 310},
            {"steps": 5, "distill": asked | {"top_k": 400}},
            model=model,
        )
    folder = plan.stages[1].config.distill
    assert folder is not None
    first, second = str(refusal.value).splitlines()
    assert first.endswith(
        "has a vocabulary of 300, and the model has 310 in this stage. Give a teacher with the same tokens."
    )
    assert second == (
        "stages[1].distill.top_k: is 400, and the model knows 310 tokens. Write less, or leave it out for all of them."
    )
