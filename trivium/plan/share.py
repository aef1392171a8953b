"""A plan -> what other ranks and processes need to make the same one without looking at a file: sources and tables.

The values are plain, so that they travel as JSON: some 100 bytes a token file, and for each reading the rows of its
windows, compressed. A rank whose cache folder lacks a table keeps it there.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any
from zlib import compress, decompress

from trivium.config.schema import Config
from trivium.files import cache_folder
from trivium.plan.inherit import Inherited
from trivium.plan.make import make_inherited
from trivium.plan.plan import Plan
from trivium.rows.reading import keep_table
from trivium.run.decisions import Decision
from trivium.sources.known import describe_source, known_source, known_view
from trivium.sources.open import OpenSource, OpenSources


def found_out(plan: Plan) -> dict[str, Any]:
    """What was found out about a plan's sources, and how far their readings reach."""
    uses = [use for stage in plan.stages for use in stage.uses.values()]
    readings = {use.segment.reading.key: use.segment.reading for use in uses if use.segment is not None}
    return {
        "sources": {name: describe_source(source) for name, source in plan.sources.items()},
        "tables": {key: b64encode(compress(each.table_content())).decode() for key, each in readings.items()},
    }


def known_sources(config: Config, found: Mapping[str, Any]) -> dict[str, OpenSource]:
    """The sources as rank 0 found them, with the tables of their readings in the cache folder."""
    for key, table in found["tables"].items():
        keep_table(cache_folder(), key, decompress(b64decode(table)))
    known: dict[str, OpenSource] = {}
    for name, each in found["sources"].items():  # a view comes after its source
        view_of = each["view_of"]
        known[name] = known_view(known[view_of], each) if view_of else known_source(name, config.sources[name], each)
    return known


def remade(
    taken: Inherited,
    found: Mapping[str, Any],
    own: Mapping[str, Any],
    decisions: tuple[Decision, ...],
    is_complete: bool,
) -> Plan:
    """A plan that was pickled, made again of what it had found out."""
    opened = OpenSources(known_sources(taken.config, found), {})
    plan = make_inherited(taken, opened, own, decisions)
    return plan.complete() if is_complete else plan.readable()
