"""A plan for people: tables that fit 80 columns, plain text when piped."""

from collections.abc import Iterator
from textwrap import fill

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from trivium.config.dialects.translation import Notes
from trivium.config.load import Loaded
from trivium.config.numbers import show_count
from trivium.config.problems import show_value
from trivium.config.sources import fim_of, score_words
from trivium.config.stages import CROPPING
from trivium.model.words import export_line, layer_line
from trivium.plan.export import inherited_values, objective_lines, stage_json
from trivium.plan.lr.words import rate_lines
from trivium.plan.plan import Plan
from trivium.plan.rates import MAIN_GROUP, SCALED
from trivium.plan.stage import PlannedStage, SourceUse
from trivium.screen import one_line

UNKNOWN = "?"
SHOWN_WITHOUT = 12  # documents of a source


def show_plan(plan: Plan, console: Console, loaded: Loaded | None = None, *, verbose: bool = False) -> None:
    """Print the plan: stages, what each reads, totals, notes, warnings, and what is not known."""
    parts: list[RenderableType] = [Text(headline(plan), style="bold"), *model_line(plan), *rates_line(plan)]
    parts += [Text(fill(one_line(line), console.width, subsequent_indent="  ")) for line in starting_line(plan)]
    parts += [Text(), stage_table(plan)]
    parts += [Text(fill(one_line(line), console.width, subsequent_indent="  ")) for line in rate_lines(plan)]
    parts += [Text(line) for line in objective_lines([stage_json(plan, stage) for stage in plan.stages])]
    parts += [Text(fill(line, console.width)) for line in early_lines(plan)]
    parts += [Text(), source_table(plan), Text(), source_list(plan)]
    parts += [Text(fill(line, console.width, subsequent_indent="  ")) for line in without_lines(plan)]
    parts += [Text(line) for line in (*roundings(plan), *decision_lines(plan), *inherited_lines(plan, console.width))]
    notes, warnings, gaps = Notes(), plan.warnings, plan.gaps
    if loaded is not None:
        notes, warnings = loaded.notes, (*loaded.warnings, *map(loaded.places.name, plan.warnings))
        gaps = tuple(map(loaded.places.name, plan.gaps))
    groups = {
        "differs from theirs": notes.differs,
        "decides nothing": notes.decides_nothing if verbose else (),
        "warnings": warnings,
        "not known": gaps,
    }
    for title, problems in groups.items():
        if problems:
            parts += [Text(), Text(title, style="bold")]
            parts += [
                Text(fill(f"  {one_line(str(each))}", console.width, subsequent_indent="    ")) for each in problems
            ]
    if notes.decides_nothing and not verbose:
        count = len(notes.decides_nothing)
        keys, them = ("1 key of theirs decides", "it") if count == 1 else (f"{count} keys of theirs decide", "them")
        parts += [Text(), Text(f"{keys} nothing here: --verbose lists {them}.")]
    console.print(Group(*parts), highlight=False)


def headline(plan: Plan) -> str:
    """`small: 3 stages, 4,197 steps, 2.2B tokens`."""
    count = len(plan.stages)
    stages = f"{count} stage{'s' if count > 1 else ''}"
    total = plan.total_steps
    if total is None:
        known = f"{plan.known_steps:,} steps known so far" if plan.known_steps else "length not known"
        return f"{plan.config.run.name}: {stages}, {known}"
    tokens = f"{show_count(plan.tokens_before(total))} tokens"
    most = " at the most" if any(stage.may_end_early for stage in plan.stages) else ""
    return f"{plan.config.run.name}: {stages}, {total:,} steps, {tokens}{most}"


def model_line(plan: Plan) -> list[Text]:
    """`model: 8 layers of 512, 8 heads, vocabulary 32,000, 58.7M parameters, 452M FLOPs a token`, where it is known.

    Layers that differ from Llama's have a line of their own.
    """
    model = plan.model
    if model is None:
        return []
    heads = _counted(model.heads, "head") + (f" ({model.kv_heads} kv)" if model.kv_heads != model.heads else "")
    family = "" if model.foreign is None else f"{model.foreign.family} (transformers), "
    size = f"{_counted(model.layers, 'layer')} of {model.width:,}"
    shape = f"{family}{size}, {heads}, vocabulary {model.vocab:,}"
    if plan.makes_model is not None:  # nobody has counted its FLOPs
        return [Text(f"model: {plan.makes_model}, {shape}, {show_count(model.parameters)} parameters")]
    work = sorted({plan.flops_per_token(stage) or 0.0 for stage in plan.stages})
    flops = show_count(work[0]) + (f" to {show_count(work[-1])}" if len(work) > 1 else "")
    line = Text(f"model: {shape}, {show_count(model.parameters)} parameters, {flops} FLOPs a token")
    layers = layer_line(model)
    return [line] if layers is None else [line, Text(f"layers: {layers}; {export_line(model, plan.stages[-1].rope)}")]


def _counted(count: int, what: str) -> str:
    """`1 head`, `8 heads`."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def starting_line(plan: Plan) -> list[str]:
    """`weights from exported: 21 tensors, 1,234,567 parameters (BF16); added: optimizer state (fresh)`."""
    return [] if plan.starting is None else [f"weights from {plan.starting.folder}: {plan.starting.words()}"]


def rates_line(plan: Plan) -> list[Text]:
    """`learning rates: matrix 0.02, embedding 0.283 (scaled by width), ...`, where some are scaled and known."""
    if plan.config.optimizer.lr_scaling is None or plan.model is None:
        return []
    marked = " (scaled by width)"
    rates = [f"{group} {rate:.3g}{marked * (group in SCALED)}" for group, rate in plan.peak_lr.items()]
    return [Text(f"learning rates: {', '.join(rates)}")]


def stage_table(plan: Plan) -> Table:
    """One line a stage."""
    table = plain_table("stage", "steps", "tokens", "rows x length", "packing", "learning rate")
    for stage in plan.stages:
        first, end = (UNKNOWN if step is None else f"{step:,}" for step in (stage.start, stage.end))
        shape = f"{_sizes(stage)} x {stage.seq_len:,}"
        rest = shape, stage.config.packing, _lr(plan, stage)
        may_end = "*" if stage.may_end_early else ""
        _add(table, stage.name, f"[{first}, {end}){may_end}", _count(stage.tokens), *rest)
    return table


def early_lines(plan: Plan) -> list[str]:
    """What the mark of a stage that may end on a figure means for those after it."""
    may_end = [stage for stage in plan.stages if stage.may_end_early]
    if not may_end:
        return []
    if may_end[0] is plan.stages[-1]:
        return ["* at the longest."]
    moved = _rates_that_move(plan)
    stands = f"; {', '.join(moved)} from where the rate stands then" if moved else ""
    return [f"* at the longest. What follows begins earlier then, at the rates shown{stands}."]


def _rates_that_move(plan: Plan) -> list[str]:
    """The stages whose curve starts where a stage stops that may end early, or one after it that starts so."""
    moved: list[str] = []
    moves = False
    for stage in plan.stages:
        here = stage.config.lr is not None and stage.config.lr.start is not None
        if here and moves:
            moved.append(stage.name)
        moves = stage.may_end_early or (here and moves)
    return moved


def _sizes(stage: PlannedStage) -> str:
    """Rows in a step: `256`, or of a stage whose size changes the smallest and the largest."""
    sizes = [piece.size for piece in stage.batch_pieces]
    return f"{sizes[0]:,}" if len(sizes) == 1 else f"{min(sizes):,}-{max(sizes):,}"


def source_table(plan: Plan) -> Table:
    """One line for each source of each stage; padded, cut and dropped as the policy will really do it.

    What is not known of any source is left out.
    """
    headers = ("stage", "source", "share", "tokens", "in loss", "epochs", "total", "padding", "cut", "dropped")
    rows = list(_source_rows(plan))
    known = [number for number in range(len(headers)) if number < 4 or any(row[number] != UNKNOWN for row in rows)]
    table = plain_table(*(headers[number] for number in known), right=tuple(range(2, len(known))))
    for row in rows:
        _add(table, *(row[number] for number in known))
    return table


def _source_rows(plan: Plan) -> Iterator[tuple[str, ...]]:
    """The cells of the lines of sources; the name of a stage is in its first line alone."""
    for stage in plan.stages:
        shares = stage.shares or {}
        names = list(stage.uses) or list(shares) or [UNKNOWN]
        for number, name in enumerate(names):
            use = stage.uses.get(name)
            share = f"{float(shares.get(name, 0)) * 100:.4g}%" if shares else UNKNOWN
            fading = " (fading)" if shares and name not in shares else ""
            yield (
                stage.name if number == 0 else "",
                name + fading,
                share,
                _count(use.rows * stage.seq_len if use else None),
                _loss_tokens(use),
                *_epochs(use),
                *_packed(stage, use),
            )


def roundings(plan: Plan) -> list[str]:
    """Budgets in tokens that are not a whole number of steps, or for each parameter: what is asked and what is taken.

    A size that was changed while the run went on leaves a budget in tokens its tokens, and one in steps its steps.
    """
    lines = []
    for stage in plan.stages:
        asked, taken, budget = stage.config.budget_tokens, stage.tokens, stage.config.tokens
        if asked is None or taken is None or budget is None:
            continue
        planned = f"{asked:,} tokens requested, {taken:,} planned ({stage.steps:,} steps)."
        if budget.per_parameter is not None and plan.model is not None:
            counted = f"{show_count(plan.model.matrix_parameters)} parameters (matrices of layers and output head)"
            lines.append(f"{stage.name}: {budget.per_parameter:g} tokens for each of {counted}: {planned}")
        elif asked != taken:
            lines.append(f"{stage.name}: {planned}")
    return [] if not lines else ["", *lines]


def without_lines(plan: Plan) -> list[str]:
    """`web: 2 documents do not count in the loss: 97, 812 (without)`."""
    named = {name: sorted(set(source.without)) for name, source in plan.config.sources.items() if source.without}
    lines = []
    for name, documents in named.items():
        shown = ", ".join(f"{each:,}" for each in documents[:SHOWN_WITHOUT])
        more = f" and {len(documents) - SHOWN_WITHOUT:,} more" if len(documents) > SHOWN_WITHOUT else ""
        what = "document does" if len(documents) == 1 else "documents do"
        lines.append(f"{one_line(name)}: {len(documents):,} {what} not count in the loss: {shown}{more} (without)")
    return ["", *lines] if lines else []


def decision_lines(plan: Plan) -> list[str]:
    """What was decided while the run went on, and so is not in its config."""
    return ["", *(f"decided {decision.line()}" for decision in plan.decisions)] if plan.decisions else []


def inherited_lines(plan: Plan, width: int) -> list[str]:
    """What the config took from the run that its weights come from: `from runs/base at step 400: seq_len = 256`."""
    if not plan.inherited.taken:
        return []
    taken = ", ".join(f"{key} = {show_value(value)}" for key, value in inherited_values(plan).items())
    return ["", fill(one_line(f"from {plan.inherited.base}: {taken}."), width, subsequent_indent="  ")]


def source_list(plan: Plan) -> Table:
    """One line a source, and one for each task that it mixes: what it is and how large."""
    table = plain_table("source", "kind", "where", "documents", "tokens", right=(3, 4))
    for name, source in plan.config.sources.items():
        opened = plan.sources.get(name)
        expected = source.expected_tokens
        size = (UNKNOWN, UNKNOWN if expected is None else f"~{show_count(expected)}")
        if opened is not None:
            size = f"{opened.documents:,}", show_count(opened.tokens)
        tasks = () if opened is None else opened.tasks
        fim = fim_of(source)
        cut = "" if fim is None else f" (fim: {fim.rate:.4g} of documents, {fim.spm:.4g} of these suffix first)"
        cut += score_words(source)
        _add(table, name, source.kind, f"{len(tasks)} tasks" if tasks else f"{source.where}{cut}", *size)
        for task, documents, tokens in tasks:
            _add(table, "", "", f"  {task}", f"{documents:,}", show_count(tokens))
    return table


def _add(table: Table, *cells: str) -> None:
    """A row of plain text: names are not markup, and do not break lines."""
    table.add_row(*(Text(one_line(cell)) for cell in cells))


def plain_table(*headers: str, right: tuple[int, ...] = ()) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False, header_style="dim")
    for number, header in enumerate(headers):
        is_number = number in right  # names may break over lines; a number that did would be another number
        table.add_column(header, justify="right" if is_number else "left", overflow="fold", no_wrap=is_number)
    return table


def _count(count: int | None) -> str:
    return UNKNOWN if count is None else show_count(count)


def _loss_tokens(use: SourceUse | None) -> str:
    """`1.9B`; `~1.9B` where that many are expected."""
    counted = _count(use.loss_tokens if use else None)
    return f"~{counted}" if use and use.dropped and use.loss_tokens is not None else counted


def _epochs(use: SourceUse | None) -> tuple[str, str]:
    if use is None or use.epochs is None or use.epochs_so_far is None:
        return UNKNOWN, UNKNOWN
    about = "~" if use.figures is None else ""  # of tokens that are expected, and not counted
    return f"{about}{_times(use.epochs)}", f"{about}{_times(use.epochs_so_far)}"


def _times(epochs: float) -> str:
    return f"{epochs:.2f}" if epochs < 100 else f"{epochs:,.0f}"


def _packed(stage: PlannedStage, use: SourceUse | None) -> tuple[str, str, str]:
    """Slots that stay empty, pieces whose document continues elsewhere, tokens that are dropped."""
    if use is None or use.figures is None:
        return UNKNOWN, UNKNOWN, UNKNOWN
    figures = use.figures
    slots = figures.rows * (stage.seq_len + (stage.config.packing in CROPPING))
    dropped = figures.consumed - figures.tokens
    return (
        _percent(slots - figures.tokens, slots),
        _percent(figures.cut, figures.pieces),
        _percent(dropped, figures.consumed),
    )


def _percent(part: int, whole: int) -> str:
    percent = 100 * part / whole if part else 0
    return f"{percent:.0f}%" if percent >= 9.95 or not part else f"{percent:.2g}%"


def _lr(plan: Plan, stage: PlannedStage) -> str:
    """From the first step to the last, for the group that most parameters are in."""
    first, last = plan.lr_ends(stage)
    peak = plan.peak_lr_of(stage)[MAIN_GROUP]
    shown = [UNKNOWN if end is None else f"{end * peak:.3g}" for end in (first, last)]
    return shown[0] if shown[0] == shown[1] else f"{shown[0]} to {shown[1]}"
