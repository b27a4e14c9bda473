"""`sweeperd ledger`: shows budgets of the ledger."""

import click
from pydantic import Field

from sweeperd.cli.options import limit_option
from sweeperd.cli.output import Output, shortened
from sweeperd.cli.shards import Run, on_shards, warn
from sweeperd.config import SweepSettings
from sweeperd.document import Argument, Count, Document, ShardsDocument, Text
from sweeperd.ops.reconcile.holders import HolderDocument, find_holders, read_budget
from sweeperd.store.shard import Shard
from sweeperd.text import counted


@click.group("ledger")
def command() -> None:
    """Show budgets of the ledger. `sweeperd reconcile --repair-budget` repairs one."""


class BudgetDocument(Document):
    """The budget on one shard."""

    shard: str
    address: str
    key: Text
    fields: dict[Text, Text] = Field(description="The hash of the budget.")
    held: int = Field(description="The sum that its reservations hold.")
    reservations: Count
    holders: list[HolderDocument] = Field(description="Up to --limit.")


class LedgerDocument(ShardsDocument, title="sweeperd ledger show BUDGET --json"):
    budget: Argument
    shards: list[BudgetDocument]


@command.command("show")
@click.argument("budget")
@limit_option(100_000, "Show up to this many reservations per shard.")
@on_shards()
def show(run: Run, budget: str, limit: int) -> None:
    """
    Show a budget's balances and every reservation that holds a part of it.

    BUDGET is <scope>:<unit>, such as tenant:acme/workspace:prod:TOKENS. The command reads all reservations, which may
    take a while. Exit code 1 if no shard has the budget.
    """
    read = run.each(lambda shard: _read(shard, run.settings.sweep, budget, limit))
    documents = [document for _, document in read if document]
    if not documents and not run.down:
        run.output.name_address()
        run.fail(f"there is no budget {shortened(budget)}")
    run.report(LedgerDocument(budget=budget, shards=documents))
    for each in () if run.output.as_json else documents:
        _show(run.output, each)


def _read(shard: Shard, settings: SweepSettings, budget: str, limit: int) -> BudgetDocument | None:
    key = shard.keys.budget_stem + budget.encode("utf-8", "surrogateescape")
    fields = read_budget(shard, key)
    if fields is None:
        return None
    kept, count, held = list[HolderDocument](), 0, 0
    for holder in find_holders(shard, settings, key):
        count, held = count + 1, held + holder.amount
        if len(kept) < limit:
            kept.append(holder)
    values = {"key": key, "fields": fields, "held": held, "reservations": count, "holders": kept}
    return BudgetDocument.model_validate({"shard": shard.name, "address": shard.address, **values})


def _show(output: Output, document: BudgetDocument) -> None:
    output.table(("budget", "value"), document.fields.items())
    output.say(f"held: {document.held}, by {counted(document.reservations, 'reservation')}")
    holders = document.holders
    columns = ("id", "amount", "tenant", "state", "expires_at")
    output.table(columns, [[getattr(each, column) for column in columns] for each in holders])
    if len(holders) < document.reservations:
        warn(f"showing the first {len(holders)} only; raise --limit for more")
