"""Writes the table of families into docs/models.md: what their layers have, and how far logits are from transformers'.

python docs/make_models.py      # makes tiny models of every family with transformers; takes three minutes
"""

import re
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor

PAGE = Path(__file__).parent / "models.md"
sys.path.insert(0, str(PAGE.parents[1]))

from tests.support.batches import make_batch, settings_at  # noqa: E402 (the tests are not installed)
from tests.support.families import MODELS, SEQ_LEN, VOCAB, their_logits, their_model  # noqa: E402
from tests.support.shared_families import shared_families  # noqa: E402
from trivium.engine.base import EngineSettings, StageSettings  # noqa: E402
from trivium.engine.torch.engine import TorchEngine  # noqa: E402
from trivium.engine.torch.model import DeviceBatch  # noqa: E402
from trivium.model.families.table import FAMILIES  # noqa: E402
from trivium.model.folder import read_spec  # noqa: E402
from trivium.rows.batch import Batch  # noqa: E402

TABLE = re.compile(r"(?<=<!-- native -->\n\n).*?(?=\n\n<!-- end -->)", re.DOTALL)
FACTS = {
    "llama": ("Llama 2 and 3, SmolLM 1 and 2", "norms before sublayers, a gated feed-forward"),
    "mistral": ("Mistral 7B", "all slide, in the first version"),
    "qwen2": ("Qwen 2 and 2.5", "biases of queries, keys and values; some may slide"),
    "qwen3": ("Qwen3 (dense)", "norms of queries and keys; some may slide"),
    "smollm3": ("SmolLM3", "some have no rotary positions; some may slide"),
    "olmo2": ("OLMo 2", "norms after sublayers; one norm over all heads of queries, one of keys"),
    "olmo3": ("OLMo 3", "as OLMo 2; three of four slide, with rotary positions of their own"),
    "apertus": ("Apertus", "norms of queries and keys; xIELU without a gate"),
    "gemma2": ("Gemma 2", "norms before and after; every second slides; scores and logits are capped"),
    "gemma3_text": (
        "Gemma 3 (text)",
        "as Gemma 2, norms of queries and keys for caps; five of six slide, with own positions",
    ),
}


HEAD = (
    "| family | models | layers | code | engines | documents masked | context | tensor | logits error: torch, jax | "
    "export checked |"
)


def differences(name: str, folder: Path) -> tuple[float, ...]:
    """Of one model the largest difference of logits: as read by each engine, with packed documents, and as written."""
    import transformers

    theirs = their_model(name)
    theirs.save_pretrained(folder / "theirs")
    engine = TorchEngine(EngineSettings(read_spec(folder / "theirs"), device="cpu"))
    engine.start_from(folder / "theirs")
    engine.enter(StageSettings(SEQ_LEN))

    @torch.no_grad()
    def ours(batch: Batch) -> Tensor:
        return engine.model.logits(DeviceBatch.of(batch, engine.rotation, True))

    row, packed = (make_batch((rows,), seq_len=SEQ_LEN, vocab=VOCAB) for rows in ((SEQ_LEN,), (17, 23)))
    read = ours(row) - their_logits(theirs, row.tokens)
    parts = [their_logits(theirs, packed.tokens[:, :17]), their_logits(theirs, packed.tokens[:, 17:])]
    apart = ours(packed) - torch.cat(parts, 1)
    for step in range(2):
        engine.step(packed, settings_at(step))
    engine.export(folder / "ours")
    again = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "ours", dtype=torch.float32, attn_implementation="eager"
    ).eval()
    written = ours(row) - their_logits(again, row.tokens)
    return tuple(
        float(each.abs().max()) for each in (read, _read_by_jax(folder / "theirs", row, theirs), apart, written)
    )


def _read_by_jax(folder: Path, row: Batch, theirs: object) -> Tensor:
    """Differences of the JAX engine's logits."""
    from tests.engine.jax.test_families import our_logits
    from trivium.engine.jax.engine import JaxEngine

    engine = JaxEngine(EngineSettings(read_spec(folder), device="cpu"))
    engine.start_from(folder)
    engine.enter(StageSettings(SEQ_LEN))
    return torch.from_numpy(our_logits(engine, row)[0].copy()) - their_logits(theirs, row.tokens)


def table() -> str:
    """A line for each family, with the largest differences of its tiny models."""
    lines, shared = [HEAD, "|" + "---|" * (HEAD.count("|") - 1)], shared_families("native")
    for family in FAMILIES:
        names = [name for name in MODELS if name.partition(",")[0] == family.name]
        found = []
        for name in names:
            with tempfile.TemporaryDirectory() as folder:
                found.append(differences(name, Path(folder)))
        of_torch, of_jax, apart, written = (f"{max(each):.0e}" for each in zip(*found, strict=True))
        context, tensor = (f"{max(shared[name][axis] or 0 for name in names):.0e}" for axis in ("context", "tensor"))
        cells = [f"`{family.name}`", *FACTS[family.name], "native", "torch, jax", apart, context, tensor]
        lines.append(f"| {' | '.join([*cells, f'{of_torch}, {of_jax}', written])} |")
    return "\n".join(lines)


def main() -> None:
    written, count = TABLE.subn(lambda _: table(), PAGE.read_text(encoding="utf-8"))
    assert count == 1, "the page has a place for the table"
    PAGE.write_text(written, encoding="utf-8")


if __name__ == "__main__":
    main()
