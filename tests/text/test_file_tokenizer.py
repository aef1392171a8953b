"""A tokenizer.json, a folder, a name on the Hub: what is read, and what is refused."""

import json
import os
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from tests.support.tokenizers import LINES, byte_level, file_tokenizer, opened, piece_level, write_json
from trivium.config.schema import Tokenizer as TokenizerConfig
from trivium.errors import SourceError
from trivium.text.roles import ROLES
from trivium.text.tokenizer import AwaitedTokenizerError, open_tokenizer


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    return byte_level()


def changed(described: dict[str, Any], **keys: Any) -> dict[str, Any]:
    model = described["model"] | {key: value for key, value in keys.items() if key in described["model"]}
    return {**described, **{key: value for key, value in keys.items() if key not in model}, "model": model}


def token(number: int, name: str, *, special: bool = True) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": name, "special": special, **flags}


def test_our_own_names_have_their_roles(described: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = file_tokenizer(tmp_path / "tokenizer.json", described)
    assert [tokenizer.special(role) for role in ROLES] == list(range(12))
    assert tokenizer.vocab == 400


def test_well_known_names_have_their_roles(tmp_path: Path) -> None:
    tokenizer = file_tokenizer(tmp_path / "tokenizer.json", piece_level())
    assert (tokenizer.special("bos"), tokenizer.special("eos"), tokenizer.special("user_start")) == (1, 2, None)


def test_names_in_the_config_come_first(tmp_path: Path) -> None:
    markers = {"user_start": "<unk>"}
    tokenizer = file_tokenizer(tmp_path / "tokenizer.json", piece_level(), bos="</s>", eos="<s>", markers=markers)
    assert [tokenizer.special(role) for role in ("bos", "eos", "user_start")] == [2, 1, 0]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"bos": "<S>"}, 'tokenizer.bos: "<S>" is not one of its tokens. Did you mean "<s>"?'),
        (
            {"markers": {"call_end": "done"}},
            'tokenizer.markers.call_end: "done" is not one of its tokens. Write one of "<unk>", "<s>" or "</s>".',
        ),
    ],
)
def test_a_name_without_a_token_is_refused(keys: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        file_tokenizer(tmp_path / "tokenizer.json", piece_level(), **keys)
    assert str(caught.value) == said


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
def test_a_folder_says_which_are_bos_and_eos(name: str, tmp_path: Path) -> None:
    write_json(tmp_path / "tokenizer.json", piece_level())
    write_json(tmp_path / name, {"bos_token": {"content": "</s>", "lstrip": False}, "eos_token": "<unk>", "x": 1})
    tokenizer = opened(path=str(tmp_path))
    assert (tokenizer.special("bos"), tokenizer.special("eos")) == (2, 0)


def test_a_folder_that_names_no_token_of_its_own_is_passed_over(tmp_path: Path) -> None:
    write_json(tmp_path / "tokenizer.json", piece_level())
    write_json(tmp_path / "tokenizer_config.json", {"bos_token": "<|missing|>", "eos_token": None})
    assert opened(path=str(tmp_path)).special("bos") == 1


def test_a_marker_that_the_file_does_not_call_special_is_no_text_either(tmp_path: Path) -> None:
    described = piece_level()
    described["model"]["vocab"]["<|turn|>"] = 500
    described["added_tokens"].append(token(500, "<|turn|>", special=False))
    plain = file_tokenizer(tmp_path / "a.json", described)
    marked = file_tokenizer(tmp_path / "b.json", described, markers={"user_start": "<|turn|>"})
    assert 500 in plain.encode(["a<|turn|>"])[0]
    assert 500 not in marked.encode(["a<|turn|>"])[0]
    assert plain.fingerprint != marked.fingerprint


def test_gaps_count_in_the_vocabulary(tmp_path: Path) -> None:
    described = piece_level()
    described["model"]["vocab"]["zz"] = 999
    assert file_tokenizer(tmp_path / "a.json", described).vocab == 1000


def test_no_text_is_cut_or_filled_up_or_left_to_chance(described: dict[str, Any], tmp_path: Path) -> None:
    plain = file_tokenizer(tmp_path / "a.json", described)
    cut = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    pad = {"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0}
    pad |= {"pad_type_id": 0, "pad_token": "<|eos|>"}
    odd = file_tokenizer(tmp_path / "b.json", changed(described, truncation=cut, padding=pad, dropout=0.5))
    assert [each.tolist() for each in odd.encode(LINES)] == [each.tolist() for each in plain.encode(LINES)]
    assert odd.fingerprint == plain.fingerprint


def test_a_templates_own_special_tokens_in_the_files_post_processor_are_not_added(tmp_path: Path) -> None:
    described = piece_level()
    single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    known = {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}
    processor = {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": known}
    tokenizer = file_tokenizer(tmp_path / "a.json", {**described, "post_processor": processor})
    assert tokenizer.decode(tokenizer.encode(["the"])[0].tolist()) == "the"


def test_the_fingerprint_changes_with_all_that_changes_tokens(described: dict[str, Any], tmp_path: Path) -> None:
    merges = described["model"]["merges"]
    swapped = [merges[1], merges[0], *merges[2:]]
    forms = [
        described,
        changed(described, merges=swapped),
        changed(described, merges=merges[:-1]),
        changed(described, normalizer={"type": "NFC"}),
        changed(described, pre_tokenizer=described["pre_tokenizer"]["pretokenizers"][1]),
        changed(described, ignore_merges=True),
        changed(described, added_tokens=[*described["added_tokens"], token(400, "fox", special=False)]),
    ]
    found = [file_tokenizer(tmp_path / "a.json", form).fingerprint for form in forms]
    found.append(file_tokenizer(tmp_path / "a.json", described, bos="<|eos|>").fingerprint)
    found.append(file_tokenizer(tmp_path / "a.json", described, eos="<|bos|>").fingerprint)
    (tmp_path / "x.jinja").write_text("{{ messages }}")
    found.append(file_tokenizer(tmp_path / "a.json", described, chat_template=str(tmp_path / "x.jinja")).fingerprint)
    assert len(set(found)) == len(found)


def test_the_fingerprint_does_not_change_with_the_files_layout(described: dict[str, Any], tmp_path: Path) -> None:
    found = file_tokenizer(tmp_path / "a.json", described).fingerprint
    turned = dict(reversed(described.items()))
    (tmp_path / "b.json").write_text(json.dumps(turned, indent=3))
    assert opened(path=str(tmp_path / "b.json")).fingerprint == found


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("[]", "it has no model"),
        ('{"model": {"type": "Magic"}}', "data did not match any variant of untagged enum ModelUntagged"),
    ],
)
def test_what_is_no_tokenizer_is_refused(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(SourceError) as caught:
        opened(path=str(path))
    message = str(caught.value)
    assert message.startswith(f"{path}: is not a tokenizer.json: {said}")
    assert message.endswith(". Name the tokenizer's own file.")


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        opened(path=str(tmp_path / "tokenizer.json"))
    told = "does not exist. Write the path of a tokenizer.json or its folder."
    assert str(caught.value) == f"tokenizer.path: {tmp_path}/tokenizer.json {told}"
    with pytest.raises(SourceError) as caught:
        opened(path=str(tmp_path))
    told = "has no tokenizer.json. Write the path of a tokenizer.json."
    assert str(caught.value) == f"tokenizer.path: {tmp_path} {told}"


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_a_pipe_in_the_folder_is_refused_by_what_it_is(name: str, described: dict[str, Any], tmp_path: Path) -> None:
    write_json(tmp_path / "tokenizer.json", described)
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(SourceError) as caught:
        opened(path=str(tmp_path))
    assert str(caught.value) == f"{tmp_path / name}: cannot be read: it is a pipe. Name another file."


def test_a_name_on_the_hub_that_cannot_be_had_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(SourceError) as caught:
        opened(path="some-org/some-model")
    assert str(caught.value) == (
        "tokenizer.path: some-org/some-model does not exist. If it is a name on the Hub: the Hub cannot be reached "
        "from here, and it was not fetched before. Run trivium prepare CONFIG where there is a network, with HF_HOME "
        "and TRIVIUM_CACHE in folders that this machine reads too."
    )


def test_a_plan_asks_the_cache_alone_for_a_name_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def download(*_args: Any, local_files_only: bool, **_settings: Any) -> str:
        asked.append(local_files_only)
        raise FileNotFoundError("not in the cache")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(AwaitedTokenizerError) as caught:
        open_tokenizer(TokenizerConfig(path="some-org/some-model"), fetch=False)
    assert asked == [True]
    assert str(caught.value) == (
        "tokenizer.path: some-org/some-model is not on disk. If it is a name on the Hub, trivium prepare CONFIG "
        "fetches it; else trivium tokenizer train CONFIG --out some-org/some-model makes one."
    )


def test_a_name_on_the_hub_is_read_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    commit = "0" * 40
    folder = tmp_path / "models--some-org--some-model"
    write_json(folder / "snapshots" / commit / "tokenizer.json", piece_level())
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    assert opened(path="some-org/some-model").vocab == 292


def test_a_tokenizer_that_nobody_could_have_written_is_one_line(tmp_path: Path) -> None:
    for changed, what in (
        ({"added_tokens": [{"content": ""}]}, "its added_tokens are not a list of tokens with content"),
        ({"added_tokens": {"a": 1}}, "its added_tokens are not a list of tokens with content"),
        ({"model": []}, "it has no model"),
    ):
        path = write_json(tmp_path / "tokenizer.json", byte_level() | changed)
        with pytest.raises(SourceError) as caught:
            opened(path=str(path))
        assert str(caught.value) == f"{path}: is not a tokenizer.json: {what}. Name the tokenizer's own file."


def test_half_a_surrogate_pair_names_no_token(tmp_path: Path) -> None:
    write_json(tmp_path / "tokenizer.json", byte_level())
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "\\ud800"}')
    assert opened(path=str(tmp_path)).special("eos") is not None


def test_a_text_that_a_tokenizer_cannot_encode_is_one_line(tmp_path: Path) -> None:
    pieces = {
        "version": "1.0",
        "model": {"type": "Unigram", "unk_id": None, "vocab": [["a", -1.0]]},
        "added_tokens": [],
    }
    tokenizer = file_tokenizer(tmp_path / "tokenizer.json", pieces)
    with pytest.raises(SourceError) as error:
        tokenizer.encode(["ab"])
    assert str(error.value).startswith("tokenizer: cannot encode a text (Encountered an unknown token")
