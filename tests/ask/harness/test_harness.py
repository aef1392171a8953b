"""lm-evaluation-harness, offline: a model in its engine answers as its export does, and no file beside a task runs."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.command_line import trivium
from tests.support.models import BYTES, byte_model
from tests.support.training import BYTE_RUN
from trivium.ask.export import write_tokenizer
from trivium.ask.open import open_model
from trivium.errors import UsageError
from trivium.report.read import RunFiles
from trivium.run.events import Scored, read_events
from trivium.train.trainer import Trainer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # other people's packages warn

QUIZ = """
task: quiz
dataset_path: json
dataset_kwargs: { data_files: quiz.jsonl }
test_split: train
output_type: multiple_choice
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_target: answer
doc_to_choice: "{{choices}}"
metric_list: [{ metric: acc }]
"""
WRITTEN = """
task: written
dataset_path: json
dataset_kwargs: { data_files: quiz.jsonl }
test_split: train
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[0]}}"
generation_kwargs: { until: ["\\n"], max_gen_toks: 4 }
metric_list: [{ metric: exact_match }]
"""
CONFIG = (
    BYTE_RUN
    + """
[[stages]]
name = "read"
steps = 2
seq_len = 64
batch_size = 2
"""
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run, a model of bytes as an export has it, and a quiz with its tasks; the Hub cannot be reached."""
    folder = tmp_path_factory.mktemp("harness")
    rows = [{"question": f"{n} + 1?", "choices": [str(n + 1), "7", "no"], "answer": 0} for n in range(10, 16)]
    (folder / "quiz.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "pages.jsonl").write_text(json.dumps({"text": "The tide comes in and goes out. " * 20}) + "\n")
    for name, text in {"run.toml": CONFIG, "quiz.yaml": QUIZ, "written.yaml": WRITTEN}.items():
        (folder / name).write_text(text)
    byte_model().export(folder / "hf")
    write_tokenizer(BYTES, folder / "hf", (256,))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HF_HOME", str(folder / "cache"))
        patched.setattr("datasets.config.HF_DATASETS_CACHE", folder / "cache")
        patched.setattr("datasets.config.HF_HUB_OFFLINE", True)
        patched.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        patched.chdir(folder)
        Trainer("run.toml", show=False).run()
        yield folder


def asked(*arguments: Any) -> Any:
    return SimpleNamespace(args=arguments)


def test_a_model_in_its_engine_answers_as_the_harness_reads_its_export(folder: Path) -> None:
    from lm_eval.models.huggingface import HFLM

    from trivium.ask.harness.model import EngineLM

    theirs = HFLM(pretrained=str(folder / "hf"), device="cpu", batch_size=3)
    model = open_model(folder / "hf", device="cpu")
    ours = EngineLM(model)
    assert (ours.max_length, ours.prefix_token_id, ours.eot_token_id) == (
        *(theirs.max_length, theirs.prefix_token_id, theirs.eot_token_id),
    )
    long = "the tide comes in, and " * 20
    first = theirs.generate_until([asked("The tide", {"until": ["\n"], "max_gen_toks": 3, "do_sample": False})])[0]
    pairs = [("The tide", " comes in"), ("", "It goes"), ("a ", "b"), (long, "out"), ("The tide", first[:1] or "?")]
    requests = [asked(*pair) for pair in pairs]
    for one, other in zip(ours.loglikelihood(requests), theirs.loglikelihood(requests), strict=True):
        assert one[0] == pytest.approx(other[0], abs=1e-3)
        assert one[1] == other[1]
    whole = [asked("The tide comes in"), asked(long), asked("a")]
    assert ours.loglikelihood_rolling(whole) == pytest.approx(theirs.loglikelihood_rolling(whole), abs=1e-2)
    for until in (["\n"], ["e", "a"], [first[1:2] or "x"]):
        how = {"until": until, "max_gen_toks": 6, "do_sample": False}
        texts = [asked("The tide", dict(how)), asked(long, dict(how))]
        assert ours.generate_until(texts) == theirs.generate_until(texts)


def test_scores_enter_the_runs_events_and_its_page_beside_those_of_its_own(folder: Path) -> None:
    own = Scored(step=2, scores={}, overall=0.0, seconds=0.0, stage="read")
    before = len(list(read_events(folder / "runs/small/events.jsonl")))
    code, out, err = trivium(folder, "eval", "runs/small", "--harness", "quiz.yaml,written.yaml", "--json")
    assert code == 0, err
    assert "%|" not in err  # the bars of other people's libraries
    assert "Generating" not in err
    found = json.loads(out)
    assert list(found["tasks"]) == ["quiz acc", "written exact_match"]
    assert found["tasks"]["quiz acc"]["questions"] == 6
    assert found["tasks"]["quiz acc"]["chance"] == pytest.approx(1 / 3)
    events = list(read_events(folder / "runs/small/events.jsonl"))[before:]
    assert [(event["event"], event["step"], event["stage"]) for event in events] == [("scored", 2, "read")]
    assert events[0]["harness"].startswith("lm-eval 0.4.")
    assert events[0]["scores"] == found["tasks"]
    log = RunFiles(folder / "runs/small").log
    log._add(SimpleNamespace(event=own))  # type: ignore[arg-type]
    assert len(log.of(Scored)) == 2
    code, out, err = trivium(folder, "eval", "runs/small", "--harness", "quiz.yaml")
    assert "quiz acc" in out
    code, _, err = trivium(folder, "report", "runs/small")
    assert code == 0, err
    page = next((folder / "runs/small").glob("*.html")).read_text()
    assert "quiz acc" in page
    assert "written exact_match" in page


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("process_docs: !function utils.clean", "line 10 has !function, and code from files beside a task is not run."),
        ("process_docs: utils.clean", "has process_docs, through which a task runs code"),
        ("class: !!python/name:os.system", "tag:yaml.org,2002:python/name"),
        ("include: other.yaml", "has include, through which a task runs code"),
        ("metric_list: [{ metric: ./metric.py }]", '"metric_list" is given twice'),
        ("dataset_kwarg: {}", 'has "dataset_kwarg", which is not known. Did you mean "dataset_kwargs"?'),
        ("fewshot_config: { process_docs: x }", "has fewshot_config.process_docs"),
        ("filter_list: [{ name: x, filter: [{ function: mine }] }]", 'has the filter "mine"'),
    ],
)
def test_a_file_that_names_code_is_refused(folder: Path, change: str, said: str) -> None:
    (folder / "utils.py").write_text("raise SystemExit('code of the working folder')")
    (folder / "changed.yaml").write_text(f"{QUIZ.lstrip()}{change}\n".replace("\n\n", "\n"))
    code, _, err = trivium(folder, "eval", "hf", "--harness", "changed.yaml")
    assert (code, len(err.splitlines())) == (2, 1)
    assert said in err


def test_what_a_script_or_a_pickle_would_bring_is_refused(folder: Path) -> None:
    from trivium.ask.harness.tasks import read_task

    for old, new, said in (
        ("{ metric: acc }", "{ metric: ./metric.py }", 'has the metric "./metric.py", which lm-eval does not have'),
        ("{ metric: acc }", "{ metric: acc, hf_evaluate: true }", "would fetch a script"),
        ("dataset_path: json", "dataset_path: pandas", "whose files may be pickles"),
        ("data_files: quiz.jsonl", "data_files: quiz.jsonl, trust_remote_code: true", "has trust_remote_code"),
    ):
        (folder / "script.yaml").write_text(QUIZ.replace(old, new))
        with pytest.raises(UsageError, match=said):
            read_task(folder / "script.yaml")


def test_templates_have_no_way_to_pythons_own_objects(folder: Path) -> None:
    (folder / "way.yaml").write_text(QUIZ.replace("{{question}}", "{{ question.__class__.__mro__ }}"))
    code, _, err = trivium(folder, "eval", "hf", "--harness", "way.yaml")
    assert code == 2
    assert err.splitlines()[-1] == (
        "--harness: way.yaml cannot be opened: access to attribute '__class__' of 'str' object is unsafe. "
        "Repair the file."
    )


def test_what_cannot_be_had_is_said_in_one_line(folder: Path) -> None:
    for arguments, said in (
        (("--harness", "arc_eazy"), '--harness: lm-eval has no task "arc_eazy". Did you mean "arc_easy"?'),
        (("--harness", "gone.yaml"), "--harness: gone.yaml cannot be read: No such file or directory."),
        (("--harness", "arc_easy"), "--harness: arc_easy cannot be opened: "),
        ((), "eval: give --tasks spelling,counting or --harness arc_easy,quiz.yaml."),
    ):
        code, _, err = trivium(folder, "eval", "hf", *arguments)
        assert code == 2
        assert err.splitlines()[-1].startswith(said)
