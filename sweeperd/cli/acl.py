"""`sweeperd acl`."""

import re

import click

from sweeperd.cli.options import Options, json_option, shard_option
from sweeperd.cli.output import Output
from sweeperd.ops.acl import AclDocument, AclUserDocument, Role, acl_users


def _name(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not re.fullmatch(r"[!-~]+", value):
        raise click.BadParameter("a user's name has no spaces")
    return value


@click.command("acl", short_help="Print the rights in Redis that these settings need.")
@click.option(
    "--user",
    callback=_name,
    metavar="NAME",
    help="The user's name.  [default: sweeperd; with --ledger: ledger]",
)
@click.option(
    "--role",
    type=click.Choice(["all", "sweep", "deliver"]),
    default="all",
    show_default=True,
    help="What the daemon does: its own --role.",
)
@click.option("--commands", is_flag=True, help="Also what the commands of operators need, such as show and quarantine.")
@click.option("--ledger", is_flag=True, help="What a service that uses sweeperd.ledger needs, and nothing else.")
@click.option("--file", "as_file", is_flag=True, help="Print the line of an ACL file (aclfile) and no command.")
@shard_option
@json_option
@click.pass_obj
def command(
    options: Options,
    user: str | None,
    role: Role,
    commands: bool,
    ledger: bool,
    as_file: bool,
    shard: str | None,
    as_json: bool,
) -> None:
    """
    Print the ACL SETUSER command of each Redis: the keys, channels and commands that these settings need, and no more.

    Nothing is sent. `sweeperd acl | redis-cli` runs the command; run it again after each change of the settings. It
    replaces all rules of the user but its passwords, and sets no password.
    """
    if ledger and (commands or role != "all"):
        raise click.UsageError("--ledger is for a user of its own: leave out --role and --commands")
    user = user or ("ledger" if ledger else "sweeperd")
    output = Output(as_json=as_json)
    with options.shards(shard) as (settings, shards):
        names = [each.name for each in shards]
        wanted = [each for each in settings.all_shards if each.name in names]
        users = acl_users(settings, wanted, role, commands=commands, ledger=ledger)
    lines = [" ".join(["user" if as_file else "ACL SETUSER", user, *each.rules]) for each in users]
    if as_json:
        documents = [
            AclUserDocument(address=each.address, shards=each.shards, user=user, rules=each.rules, line=line)
            for each, line in zip(users, lines, strict=True)
        ]
        output.json(AclDocument(users=documents))
        return
    for each, line in zip(users, lines, strict=True):
        click.echo(f"{each.address}: {', '.join(each.shards)}", err=True)
        click.echo(line)
