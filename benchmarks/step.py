"""What a step costs: training through the Trainer beside bare loops, documents masked, resuming, memory.

    python benchmarks/step.py            about six minutes
    python benchmarks/step.py --small    two minutes, to see that it works
    python benchmarks/step.py --engines  (f) alone: JAX beside torch, five minutes
    python benchmarks/step.py --families (g) alone: a model of transformers, three minutes
    python benchmarks/step.py --extras   (h) alone: an average, a goldfish mask, loss weights; five minutes

The CPU, float32, eager, two threads, fused AdamW, gradients clipped. Times are the clock's. What is compared
takes turns within a round, in one process, in an order that changes from round to round; shown are medians
over the rounds, of values and of ratios within a round, with the lowest and highest. A ratio holds where the
times do not; on a busy machine look at their spread too.

(a) The Trainer's loop as it is (loader, events file, meter; no terminal) beside the same decoder on one fixed
    random batch. Documents are joined in both, so that masks, which save time, do not pay for the loop.
(b) FLOPs of a token: 6 for every weight of the matrices it passes (the unembedding is one, the embedding is
    not), and 12 x layers x width x row length for attention, not halved for causality; norms and the like
    count for nothing. The peak is a product of two float32 matrices, timed before and after each stretch.
(c) Whole steps of one engine on the same batches, documents masked and joined in turn.
(d) A process each: from `Trainer(...)` on a run with a checkpoint to its first step taken, modules imported
    and the plan's facts cached. The checkpoint is of one step and says it is of more; the source is read a
    thousand times over by then. The model is the same in both.
(e) A process each: peak memory beyond what it held once its modules were imported.
(f) The Trainer's loop on both engines, on the same rows, beside each one's own decoder in a bare loop; JAX compiles
    its step before the clock starts, and what that took is printed.
(g) transformers' Llama in the Trainer (`model.family = "llama"`) beside the same model in a bare loop, with the loss
    that it computes itself, and beside our decoder of the same shape in the Trainer; documents joined in all. Then its
    steps with documents masked and joined, as in (c).
(h) The Trainer's loop with an average, a goldfish mask or loss weights beside the same loop without; a second plain
    loop shows the noise. Loss weights are those of the one source that there is: the work is the same for any weight.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from bench_run import SMALL, Size, Stretches, make_config
from fresh import MARK, in_fresh_process, peak_memory
from plain_loops import GPT, bare_decoder, nanogpt, transformers_llama
from rounds_table import in_turn, line, print_columns, ratios, title

from trivium.config.schema import Config
from trivium.engine.make import make_engine
from trivium.loader.loader import Loader
from trivium.model.spec import ModelSpec
from trivium.plan.make import make_plan
from trivium.plan.settings import engine_settings, stage_settings
from trivium.train.trainer import Trainer

THREADS = 2
WARM_STEPS = 2
MEMORY_STEPS = 6
MEAN_DOCUMENTS = (512, 128)
PEAK_SECONDS = 0.5

FOREIGN, NATIVE = "Trainer, transformers Llama", "Trainer, our decoder"
TRAINER, BARE, NANOGPT, LLAMA = "trivium, Trainer", "trivium, bare loop", "nanoGPT-style", "transformers Llama"


def matmul_rate(size: int) -> float:
    """FLOP/s of products of float32 matrices, over half a second of them."""
    one, other = torch.rand(size, size), torch.rand(size, size)
    one @ other
    count, begin = 0, time.perf_counter()
    while (seconds := time.perf_counter() - begin) < PEAK_SECONDS:
        one @ other
        count += 1
    return float(count * 2 * size**3 / seconds)


def flops_of_token(spec: ModelSpec, size: Size) -> dict[str, float]:
    """By model; the one after nanoGPT has other matrices."""
    own = spec.flops(size.seq_len)
    with torch.device("meta"):
        matrices = GPT(spec.vocab, size.seq_len, spec.layers, spec.heads, spec.width).matrices
    attention = 12 * spec.layers * spec.heads * spec.head_dim * size.seq_len
    return {TRAINER: own, BARE: own, NANOGPT: 6 * matrices + attention, LLAMA: own}


def compare_loops(folder: Path, size: Size, rounds: int) -> None:
    """(a) and (b): all loops in one process, a stretch each in every round."""
    steps = WARM_STEPS + rounds * size.stretch + 64
    trainer = Stretches(make_config(folder, size, name="loops", steps=steps), show=False)
    rates: dict[str, list[float]] = {name: [] for name in (TRAINER, BARE, NANOGPT, LLAMA)}
    of_peak: dict[str, list[float]] = {name: [] for name in rates}
    peaks: list[float] = []
    with trainer.open_session():
        trainer.load()
        spec = trainer.plan.model
        flops = flops_of_token(spec, size)
        loops: dict[str, Callable[[int], None]] = {
            TRAINER: trainer.take,
            BARE: bare_decoder(spec, size.num_rows, size.seq_len).take,
            NANOGPT: nanogpt(spec, size.num_rows, size.seq_len).take,
            LLAMA: transformers_llama(spec, size.num_rows, size.seq_len).take,
        }
        for take in loops.values():
            take(WARM_STEPS)
        for turn in range(rounds):
            order = in_turn(list(loops), turn)
            around = [matmul_rate(size.peak_size)]
            for name in order:
                take = loops[name]
                begin = time.perf_counter()
                take(size.stretch)
                seconds = time.perf_counter() - begin
                rates[name].append(size.stretch * size.num_rows * size.seq_len / seconds)
                around.append(matmul_rate(size.peak_size))
            peaks += around
            for name, (before, after) in zip(order, pairwise(around), strict=True):
                of_peak[name].append(rates[name][-1] * flops[name] / ((before + after) / 2))
    title(f"(a) tokens/s, {size.num_rows} x {size.seq_len}")
    line(TRAINER, rates[TRAINER], ",.0f")
    line(BARE, rates[BARE], ",.0f")
    line("ratio", ratios(rates[TRAINER], rates[BARE]), ".3f", "at least 0.97")
    title(f"(b) model FLOP/s over those of a product of {size.peak_size} x {size.peak_size} matrices")
    line("the product, GFLOP/s", [peak / 1e9 for peak in peaks], ",.0f")
    for name in rates:
        line(name, of_peak[name], ".3f", "at least 0.57" if name == TRAINER else "")
    for name in (NANOGPT, LLAMA):
        line(f"FLOP/s beside {name}", ratios(of_peak[TRAINER], of_peak[name]), ".2f", "over 1")
        line(f"tokens/s beside {name}", ratios(rates[TRAINER], rates[name]), ".2f")


def compare_families(folder: Path, size: Size, rounds: int) -> None:
    """(g): one shape three times: our decoder, transformers' model in the Trainer, and the same in a bare loop."""
    steps = WARM_STEPS + rounds * size.stretch + 64
    native: dict[str, Any] = {**size.model, "heads": max(1, size.width // 64), "max_seq_len": size.seq_len}
    foreign: dict[str, Any] = {**native, "family": "llama"}
    with ExitStack() as stack:
        trainers = {
            name: Stretches(make_config(folder, size, name=f"families-{at}", steps=steps, model=keys), show=False)
            for at, (name, keys) in enumerate({NATIVE: native, FOREIGN: foreign}.items())
        }
        for trainer in trainers.values():
            stack.enter_context(trainer.open_session())
            trainer.load()
        shapes = [trainer.plan.model for trainer in trainers.values()]
        assert shapes[0].parameters == shapes[1].parameters, "the same shape"
        loops: dict[str, Callable[[int], None]] = {name: trainer.take for name, trainer in trainers.items()}
        loops[LLAMA] = transformers_llama(shapes[1], size.num_rows, size.seq_len).take
        rates: dict[str, list[float]] = {name: [] for name in loops}
        for take in loops.values():
            take(WARM_STEPS)
        for turn in range(rounds):
            for name in in_turn(list(loops), turn):
                begin = time.perf_counter()
                loops[name](size.stretch)
                seconds = time.perf_counter() - begin
                rates[name].append(size.stretch * size.num_rows * size.seq_len / seconds)
    title(f"(g) tokens/s of transformers' Llama, {size.num_rows} x {size.seq_len}")
    for name, values in rates.items():
        line(name, values, ",.0f")
    line("transformers: Trainer over bare loop", ratios(rates[FOREIGN], rates[LLAMA]), ".3f", "at least 0.97")
    line("Trainer: our decoder over transformers", ratios(rates[NATIVE], rates[FOREIGN]), ".3f", "over 1")
    compare_documents(folder, size, rounds, foreign | {"max_seq_len": size.long_seq_len})


class DocumentSteps:
    """Steps of one engine on documents of a mean length, masked or joined."""

    def __init__(
        self, folder: Path, size: Size, mean_document: int, steps: int, model: Mapping[str, Any] | None = None
    ) -> None:
        rows = {"seq_len": size.long_seq_len, "batch_size": size.long_rows}
        config = make_config(
            folder, size, name="documents", steps=steps, mean_document=mean_document, stage=rows, model=model
        )
        self.plan = make_plan(config).complete()
        self.loader = Loader(self.plan, prefetch=0)
        self.engine = make_engine(engine_settings(config, self.plan.model))
        self.stage = stage_settings(self.plan.stages[0].config, self.plan.stages[0].rope, begins=True)

    def seconds(self, first: int, count: int, document_mask: bool) -> float:
        """Of one step; the batches are there before the clock starts."""
        self.engine.enter(replace(self.stage, document_mask=document_mask))
        batches = [self.loader.batch(step) for step in range(first, first + count)]
        begin = time.perf_counter()
        for step, batch in enumerate(batches, first):
            self.engine.step(batch, self.plan.settings_at(step))
        return (time.perf_counter() - begin) / count


def compare_documents(folder: Path, size: Size, rounds: int, model: Mapping[str, Any] | None = None) -> None:
    """(c): the same engine and batches, masked and joined in turn."""
    title(f"(c) seconds of a step, {size.long_rows} x {size.long_seq_len}")
    kinds = ("masked", "joined")
    for mean in MEAN_DOCUMENTS:
        steps = DocumentSteps(folder, size, mean, WARM_STEPS + rounds * size.long_stretch, model)
        seconds: dict[str, list[float]] = {documents: [] for documents in kinds}
        for documents in kinds:
            steps.seconds(0, WARM_STEPS, documents == "masked")
        for turn in range(rounds):
            for documents in in_turn(kinds, turn):
                first = WARM_STEPS + turn * size.long_stretch
                seconds[documents].append(steps.seconds(first, size.long_stretch, documents == "masked"))
        line(f"documents of {mean}, joined", seconds["joined"], ".3f")
        line(f"documents of {mean}, masked", seconds["masked"], ".3f")
        line("joined over masked", ratios(seconds["joined"], seconds["masked"]), ".2f", "over 1")


def resumed(folder: Path, size: Size, step: int) -> Config:
    """The config of the run whose checkpoint says this step; the run goes on behind it."""
    return make_config(folder, size, name=f"step-{step}", steps=size.deep_step * 11 // 10)


def make_run(folder: str, size: Mapping[str, int], step: int) -> None:
    """Take one step, and save a checkpoint that says it is of another."""
    trainer = Stretches(resumed(Path(folder), Size(**size), step), show=False)
    with trainer.open_session():
        trainer.load()
        trainer.take(1)
        trainer.step = step
        trainer.save()


def resume(folder: str, size: Mapping[str, int], step: int) -> dict[str, float]:
    """Seconds from nothing but imports to the plan, to the loaded state, and to the first step taken."""
    config = resumed(Path(folder), Size(**size), step)
    marks = [time.perf_counter()]
    trainer = Stretches(config, show=False)
    marks.append(time.perf_counter())
    with trainer.open_session():
        trainer.load()
        marks.append(time.perf_counter())
        trainer.take(1)
        marks.append(time.perf_counter())
    assert trainer.step == step + 1, "the run went on from its checkpoint"
    parts = [after - before for before, after in pairwise(marks)]
    return {"plan": parts[0], "load": parts[1], "step": parts[2], "together": sum(parts)}


def compare_resumes(folder: Path, size: Size, rounds: int) -> None:
    """(d): a process for every resume, near the start and deep inside a run in turn."""
    steps = (size.near_step, size.deep_step)
    for step in steps:
        ask(folder, "make run", {"folder": str(folder), "size": size.plain, "step": step})
    found: dict[int, list[dict[str, float]]] = {step: [] for step in steps}
    for turn in range(rounds):
        for step in in_turn(steps, turn):
            found[step].append(ask(folder, "resume", {"folder": str(folder), "size": size.plain, "step": step}))
    title("(d) seconds from a Trainer on an existing run to its first step taken")
    for step in steps:
        line(f"at step {step:,}", [times["together"] for times in found[step]], ".2f")
        for part in ("plan", "load", "step"):
            line(f"  {part}", [times[part] for times in found[step]], ".3f")
    near, deep = ([times["together"] for times in found[step]] for step in steps)
    line("deep over near", ratios(deep, near), ".2f", "1.0")


def bare_memory(folder: str, size: Mapping[str, int], every: int | None) -> int:
    """Peak bytes of the bare loop beyond the imports."""
    of = Size(**size)
    spec = make_plan(make_config(Path(folder), of, name="bare", steps=MEMORY_STEPS)).complete().model
    before = peak_memory()
    bare_decoder(spec, of.num_rows, of.seq_len).take(MEMORY_STEPS)
    return peak_memory() - before


def run_memory(folder: str, size: Mapping[str, int], every: int | None) -> int:
    """Peak bytes of a whole run beyond the imports, its last checkpoint included."""
    of = Size(**size)
    checkpoint = {} if every is None else {"every": every}
    name = f"memory-{os.getpid()}"  # a run of its own: nothing to resume
    config = make_config(Path(folder), of, name=name, steps=MEMORY_STEPS, checkpoint=checkpoint)
    before = peak_memory()
    Trainer(config, show=False).run()
    return peak_memory() - before


def compare_memory(folder: Path, size: Size, rounds: int) -> None:
    """(e): a process for every loop and round."""
    saving = f"saving every {MEMORY_STEPS // 2} steps"
    tasks: dict[str, tuple[str, int | None]] = {
        BARE: ("bare memory", None),
        TRAINER: ("run memory", None),
        f"... {saving}": ("run memory", MEMORY_STEPS // 2),
    }
    peaks: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(rounds):
        for name, (task, every) in tasks.items():
            peaks[name].append(ask(folder, task, {"folder": str(folder), "size": size.plain, "every": every}) / 1e6)
    title("(e) peak memory beyond the imports, MB")
    for name, values in peaks.items():
        line(name, values, ",.0f")
    line("ratio", ratios(peaks[TRAINER], peaks[BARE]), ".2f", "at most 1.1")
    line(f"... {saving}", ratios(peaks[f"... {saving}"], peaks[BARE]), ".2f")


def compare_engines(folder: Path, size: Size, rounds: int) -> None:
    """(f): both engines in one process, a stretch of each loop in every round."""
    from jax_loop import bare_jax

    from trivium.engine.jax.step import compilations

    steps = WARM_STEPS + rounds * size.stretch + 64
    jax_bare = "jax, bare jitted loop"
    names = ("torch, Trainer", BARE.replace("trivium", "torch"), "jax, Trainer", jax_bare)
    on_torch, on_jax = (
        Stretches(make_config(folder, size, name=engine, steps=steps, engine=engine), show=False)
        for engine in ("torch", "jax")
    )
    rates: dict[str, list[float]] = {name: [] for name in names}
    with on_torch.open_session(), on_jax.open_session():
        on_torch.load()
        on_jax.load()
        spec, known = on_torch.plan.model, compilations()
        before = known.count, known.seconds
        on_jax.take(1)
        compiled = known.count - before[0], known.seconds - before[1]
        on_jax.take(2 * WARM_STEPS)
        again = known.count - before[0] - compiled[0]
        loops: dict[str, Callable[[int], None]] = {
            names[0]: on_torch.take,
            names[1]: bare_decoder(spec, size.num_rows, size.seq_len).take,
            names[2]: on_jax.take,
            names[3]: bare_jax(spec, size.num_rows, size.seq_len).take,
        }
        for take in loops.values():
            take(WARM_STEPS)
        for turn in range(rounds):
            for name in in_turn(names, turn):
                begin = time.perf_counter()
                loops[name](size.stretch)
                seconds = time.perf_counter() - begin
                rates[name].append(size.stretch * size.num_rows * size.seq_len / seconds)
    title(f"(f) tokens/s, {size.num_rows} x {size.seq_len}, both engines")
    for name in names:
        line(name, rates[name], ",.0f")
    line("jax beside its bare loop", ratios(rates[names[2]], rates[names[3]]), ".3f", "at least 0.97")
    line("jax beside torch", ratios(rates[names[2]], rates[names[0]]), ".3f", "at least 0.8")
    line("torch beside its bare loop", ratios(rates[names[0]], rates[names[1]]), ".3f")
    print(f"  compiled at the first step: {compiled[0]} in {compiled[1]:.1f} s; at later ones: {again}")


EXTRAS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "plain, a second time": {},
    "average (ema)": {"average": {"ema": 0.999}},
    "goldfish mask": {"goldfish": {"k": 50, "h": 50}},
    "loss weights": {"loss_weight": {"web": 0.5}},
}


def compare_extras(folder: Path, size: Size, rounds: int) -> None:
    """(h): a Trainer for each, all in one process, a stretch of each in every round."""
    steps = WARM_STEPS + rounds * size.stretch + 64
    configs = {
        name: make_config(folder, size, name=f"extra-{number}", steps=steps, stage=stage)
        for number, (name, stage) in enumerate(EXTRAS.items())
    }
    seconds: dict[str, list[float]] = {name: [] for name in EXTRAS}
    with ExitStack() as stack:
        trainers = {name: Stretches(config, show=False) for name, config in configs.items()}
        for trainer in trainers.values():
            stack.enter_context(trainer.open_session())
            trainer.load()
            trainer.take(WARM_STEPS)
        for turn in range(rounds):
            for name in in_turn(list(trainers), turn):
                begin = time.perf_counter()
                trainers[name].take(size.stretch)
                seconds[name].append((time.perf_counter() - begin) / size.stretch)
    title(f"(h) seconds of a step, {size.num_rows} x {size.seq_len}, and over the plain one's")
    targets = {"average (ema)": "at most 1.03", "goldfish mask": "noise", "loss weights": "noise"}
    for name, values in seconds.items():
        line(name, values, ".4f")
        if name != "plain":
            line("  over plain", ratios(values, seconds["plain"]), ".3f", targets.get(name, ""))


TASKS: Mapping[str, Callable[..., Any]] = {
    "make run": make_run,
    "resume": resume,
    "bare memory": bare_memory,
    "run memory": run_memory,
}


def ask(folder: Path, task: str, arguments: Mapping[str, Any]) -> Any:
    """What a task gives in a process of its own."""
    return in_fresh_process(__file__, task, arguments, folder / "cache")


def answer(request: str) -> None:
    """In the new process, with all of its cores: do the task, and print what it gives."""
    arguments = json.loads(request)
    print(MARK + json.dumps(TASKS[arguments.pop("task")](**arguments)), flush=True)


def main() -> None:
    """Measure one thing after the other, and print the table as it grows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=None, help="7, or 1 with --small; fewer where processes start")
    parser.add_argument("--small", action="store_true", help="a small model, short rows, one round")
    parser.add_argument("--engines", action="store_true", help="only JAX beside torch")
    parser.add_argument("--families", action="store_true", help="only a model of transformers")
    parser.add_argument("--extras", action="store_true", help="only an average, a goldfish mask and loss weights")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    if options.task:
        answer(options.task)
        return
    size = SMALL if options.small else Size()
    rounds = options.rounds or (1 if options.small else 7)
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    print(
        f"{size.layers} layers, width {size.width}, vocabulary {size.vocab:,}; torch {torch.__version__}, "
        f"{THREADS} threads; {rounds} rounds; load before: {load}"
    )
    print_columns("", ("median", "lowest to highest", "target"))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if options.engines:
            compare_engines(folder, size, rounds)
            return
        if options.families:
            compare_families(folder, size, rounds)
            return
        if options.extras:
            compare_extras(folder, size, rounds)
            return
        compare_loops(folder, size, rounds)
        compare_documents(folder, size, rounds)
        compare_resumes(folder, size, min(rounds, 5))
        compare_memory(folder, size, min(rounds, 3))
        compare_extras(folder, size, rounds)
    print(f"\nload after: {', '.join(f'{one:.1f}' for one in os.getloadavg())}")


if __name__ == "__main__":
    main()
