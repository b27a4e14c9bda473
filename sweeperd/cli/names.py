"""Names that an operator types."""

import difflib
from collections.abc import Iterable

from sweeperd.cli.options import Exit, fail
from sweeperd.cli.output import printable, shortened
from sweeperd.config import EndpointSettings, Settings


def check_name(kind: str, name: str, known: Iterable[str]) -> None:
    """Ends the process where `name` is unknown; the message holds the most similar known name."""
    names = sorted(known)
    if name in names:
        return
    close = difflib.get_close_matches(name, names, 1)
    if close:
        hint = f"; did you mean {close[0]}?"
    elif names:
        hint = f", only {shortened(', '.join(names), 200)}"
    else:
        hint = "; there is none"
    fail(printable(f"there is no {kind} {shortened(name)!r} in the configuration{hint}"), Exit.USAGE)


def endpoint_of(settings: Settings, name: str) -> EndpointSettings:
    """The configured endpoint of this name. Ends the process where there is none."""
    known = {endpoint.name: endpoint for endpoint in settings.webhooks.endpoints}
    check_name("endpoint", name, known)
    return known[name]
