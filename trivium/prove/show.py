"""A proof for people: a table of gates, and the first differences of those that were not passed."""

from rich.console import Console
from rich.text import Text

from trivium.plan.show import plain_table
from trivium.prove.gates import Proof, show_ranks

MOST = 5  # differences of a gate


def show_proof(proof: Proof, console: Console) -> None:
    settings, versions = proof.settings, proof.versions
    engine = settings["engine"]
    where = f"{engine} {versions.get(engine, '')}, {settings['device']}, {settings['precision']}"
    headline = f"{where}: {proof.steps:,} steps on {show_ranks(proof.ranks)} and on {proof.against:,}"
    console.print(Text(headline, style="bold"), highlight=False)
    table = plain_table("gate", "passed", "compared")
    for gate in proof.gates:
        table.add_row(Text(gate.name), Text("yes" if gate.passed else "no"), Text(gate.compared))
    console.print(table)
    for gate in proof.gates:
        for difference in gate.differences[:MOST]:
            console.print(Text(f"{gate.name}: {difference}"), highlight=False)
        if len(gate.differences) > MOST:
            console.print(Text(f"{gate.name}: and {len(gate.differences) - MOST:,} more"), highlight=False)
