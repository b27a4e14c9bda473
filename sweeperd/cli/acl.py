"""`sweeperd acl`: prints the rights in Redis that the settings need."""

import re

import click

from sweeperd.cli.shards import Run, on_shards
from sweeperd.ops.acl import AclDocument, AclUserDocument, Role, acl_users


def _user_name(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not re.fullmatch(r"[!#-&(-~]+", value):  # redis-cli would take quotes away
        raise click.BadParameter("a user name must be printable ASCII without spaces and quotes")
    return value


@click.command("acl")
@click.option(
    "--user", callback=_user_name, metavar="NAME", help="The user's name.  [default: sweeperd; with --ledger: ledger]"
)
@click.option("--role", type=click.Choice(["all", "sweep", "deliver"]), default="all", help="The --role of the daemon.")
@click.option("--commands", is_flag=True, help="Include the rights of operators' commands, such as show or quarantine.")
@click.option("--ledger", is_flag=True, help="Print only the rights of a service that uses sweeperd.ledger.")
@click.option("--cycles", is_flag=True, help="With --ledger: include the rights of Ledger(cycles=True).")
@click.option("--read-only", is_flag=True, help="Grant keys of other services with %R~. Needs Redis 7.0 or newer.")
@click.option("--file", "as_file", is_flag=True, help="Print lines for an ACL file (aclfile) instead of commands.")
@on_shards()
def command(
    run: Run,
    user: str | None,
    role: Role,
    commands: bool,
    ledger: bool,
    cycles: bool,
    read_only: bool,
    as_file: bool,
) -> None:
    """
    Print the ACL SETUSER command for each Redis: exactly the keys, channels and commands that these settings need.

    Nothing is sent; `sweeperd acl | redis-cli` applies it. Run it again after you change the settings. The command
    replaces all rules of the user and keeps its passwords.
    """
    if ledger and (commands or role != "all"):
        raise click.UsageError("--ledger is for a separate user: remove --role and --commands")
    if cycles and not ledger:
        raise click.UsageError("--cycles needs --ledger; the daemon gets these rights from cycles.enabled")
    user = user or ("ledger" if ledger else "sweeperd")
    names = [each.name for each in run.shards]
    wanted = [each for each in run.settings.all_shards if each.name in names]
    duties = {"commands": commands, "ledger": ledger, "cycles": cycles}
    users = acl_users(run.settings, wanted, role, **duties, read_only=read_only)
    lines = [" ".join(["user" if as_file else "ACL SETUSER", user, *each.rules]) for each in users]
    if run.output.as_json:
        made = (AclUserDocument.made_of(each, user=user, line=line) for each, line in zip(users, lines, strict=True))
        run.output.json(AclDocument(users=list(made)))
        return
    for each, line in zip(users, lines, strict=True):
        click.echo(f"{each.address}: {', '.join(each.shards)}", err=True)
        click.echo(line)
