"""How fast text becomes token files: `trivium prepare` beside other ways, on the same number of processes.

    python benchmarks/prepare.py            about fifteen minutes
    python benchmarks/prepare.py --small    one minute, to see that it works

The text is Python's standard library, cut at its functions and classes, as JSONL in some files; the tokenizer, a
byte-level BPE, is trained on it. Each contender has a fresh process, and may start as many as `--workers`; timed is
all that it does from files to tokens, its own processes' start included. The bare loop is the limit: the fastest
encoder over texts that are in memory already, nothing parsed and nothing written. Rounds go through all contenders
in turn, so that a slow minute hits all of them. Shown are medians over the rounds, of rates and of ratios within a
round: by the clock, and by the processors' time, which others on the machine hardly change.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fresh import MARK, print_line

FILES = 8
VOCAB = 16_384
SMALL = {"rounds": 1, "mb": 4}
TARGETS = {"datatrove": 3.0, "bare loop": 0.85}


def documents() -> Iterator[str]:
    """The standard library's functions, classes and what stands between them, again and again."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(path for path in root.rglob("*.py") if "site-packages" not in path.parts)
    for turn in range(1000):
        for path in paths:
            text = path.read_text(encoding="utf-8", errors="ignore")
            for part in text.split("\nclass " if turn % 2 else "\ndef "):
                if part.strip():
                    yield f"{part}\n# {turn}" if turn else part


def write_corpus(folder: Path, megabytes: float) -> int:
    """JSONL files and a tokenizer; the bytes of text."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    folder.mkdir(parents=True, exist_ok=True)
    texts, size = [], 0
    for text in documents():
        texts.append(text)
        size += len(text.encode())
        if size >= megabytes * 1e6:
            break
    for number in range(FILES):
        with open(folder / f"{number}.jsonl", "w", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": text}) + "\n" for text in texts[number::FILES])
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(texts[:4000], trainer)
    bpe.save(str(folder / "tokenizer.json"))
    return size


def now() -> tuple[float, float]:
    """The clock, and the time that the processors have spent on this process and those it has started."""
    used = os.times()
    return time.perf_counter(), used.user + used.system + used.children_user + used.children_system


def since(begin: tuple[float, float]) -> tuple[float, float]:
    """Seconds by both."""
    clock, processor = now()
    return clock - begin[0], processor - begin[1]


def trivium(folder: Path, out: Path, workers: int) -> tuple[float, float]:
    """`trivium prepare`."""
    from trivium.sources.commands import prepare_paths

    begin = now()
    prepare_paths([str(folder / "*.jsonl")], out, str(folder / "tokenizer.json"), "text", None, None, workers, "ds")
    return since(begin)


def datatrove(folder: Path, out: Path, workers: int) -> tuple[float, float]:
    """DocumentTokenizer in a LocalPipelineExecutor."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    steps = [
        JsonlReader(str(folder), glob_pattern="*.jsonl"),
        DocumentTokenizer(str(out), str(folder / "tokenizer.json"), eos_token="<|endoftext|>", shuffle_documents=False),
    ]
    begin = now()
    LocalPipelineExecutor(steps, tasks=workers, workers=workers, logging_dir=str(out / "logs")).run()
    return since(begin)


def datasets_map(folder: Path, out: Path, workers: int) -> tuple[float, float]:
    """`datasets.map` in batches with a fast tokenizer."""
    import datasets
    from transformers import PreTrainedTokenizerFast

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_file=str(folder / "tokenizer.json"), eos_token="<|endoftext|>"
    )
    files = sorted(str(path) for path in folder.glob("*.jsonl"))
    begin = now()
    rows = datasets.load_dataset("json", data_files=files, split="train", cache_dir=str(out))
    rows.map(
        lambda batch: {"input_ids": [[*ids, 0] for ids in tokenizer(batch["text"])["input_ids"]]},
        batched=True,
        num_proc=workers,
        remove_columns=["text"],
    )
    return since(begin)


def bare_loop(folder: Path, _out: Path, workers: int) -> tuple[float, float]:
    """The fastest encoder over texts in memory; by the clock the slowest process counts."""
    script = str(Path(__file__).resolve())
    command = [sys.executable, script, "--loop", str(folder), str(workers)]
    loops = [
        subprocess.Popen([*command, str(part)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for part in range(workers)
    ]
    for loop in loops:
        assert loop.stdout is not None
        loop.stdout.readline()  # it is ready
    for loop in loops:
        assert loop.stdin is not None
        loop.stdin.write("go\n")
        loop.stdin.flush()
    times = [json.loads(loop.communicate()[0]) for loop in loops]
    return max(clock for clock, _ in times), sum(processor for _, processor in times)


def loop(folder: Path, workers: int, part: int) -> None:
    """One process of the bare loop."""
    from trivium.config.schema import Tokenizer
    from trivium.text.fast_bpe import make_fast
    from trivium.text.tokenizer import open_tokenizer

    files = sorted(folder.glob("*.jsonl"))[part::workers]
    texts = [json.loads(line)["text"] for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    tokenizer = open_tokenizer(Tokenizer(path=str(folder / "tokenizer.json")))
    assert tokenizer is not None
    fast = make_fast(tokenizer, texts[:10])
    encoder = tokenizer if isinstance(fast, str) else fast
    assert encoder is not tokenizer, "the fast form is what is compared with"
    encoder.encode(texts[:10])
    print("ready", flush=True)
    sys.stdin.readline()
    clock, processor = time.perf_counter(), time.process_time()
    for text in texts:
        encoder.encode([text])
    print(json.dumps([time.perf_counter() - clock, time.process_time() - processor]))


CONTENDERS: dict[str, Callable[[Path, Path, int], tuple[float, float]]] = {
    "trivium prepare": trivium,
    "datatrove": datatrove,
    "datasets.map": datasets_map,
    "bare loop": bare_loop,
}


def seconds_of(name: str, folder: Path, workers: int) -> tuple[float, float]:
    """The times of one contender, in a fresh process and an empty folder."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, __file__, "--contender", name, str(folder), str(Path(out) / "out"), str(workers)]
        environment = os.environ | {"TRIVIUM_CACHE": out, "HF_HOME": out, "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            clock, processor = json.loads(line.removeprefix(MARK))
            return clock, processor
    raise RuntimeError(f"{name} gave no result:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


def compare(folder: Path, size: int, rounds: int, workers: int) -> None:
    """Time every contender, round after round, and print the table."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in CONTENDERS}
    for _ in range(rounds):
        for name in CONTENDERS:
            times[name].append(seconds_of(name, folder, workers))
    print_line("", ("MB/s", "trivium is", "spread", "by processors", "spread", "target"), 16)
    ours = times["trivium prepare"]
    for name, found in times.items():
        rates = [size / 1e6 / clock for clock, _ in found]
        columns = [f"{statistics.median(rates):.2f}"]
        # datatrove's processes are not this one's children, so that their time is not known.
        for kind in () if found is ours else (0,) if name == "datatrove" else (0, 1):
            ratios = [other[kind] / mine[kind] for mine, other in zip(ours, found, strict=True)]
            columns += [f"{statistics.median(ratios):.2f} x", f"{min(ratios):.2f} to {max(ratios):.2f}"]
        columns += [""] * (5 - len(columns))
        print_line(name, (*columns, f"{TARGETS[name]:g} x" if name in TARGETS else ""), 16)


def main() -> None:
    """Make the corpus and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mb", type=float, default=256, help="of text")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--small", action="store_true", help="a small corpus, one round")
    parser.add_argument("--contender", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--loop", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.loop:
        loop(Path(options.loop[0]), int(options.loop[1]), int(options.loop[2]))
        return
    if options.contender:
        name, folder, out, workers = options.contender
        print(MARK + json.dumps(CONTENDERS[name](Path(folder), Path(out), int(workers))), flush=True)
        return
    if options.small:
        parser.set_defaults(**SMALL)
        options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        size = write_corpus(Path(folder), options.mb)
        print(f"{size / 1e6:.1f} MB of text in {FILES} files, a vocabulary of {VOCAB:,}, {options.workers} processes\n")
        compare(Path(folder), size, options.rounds, options.workers)


if __name__ == "__main__":
    main()
