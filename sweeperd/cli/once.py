"""`sweeperd --once`: runs one sweep with its deliveries, and reports it."""

import contextlib
import functools
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
from http.client import HTTPException, InvalidURL

import click
from prometheus_client import push_to_gateway, write_to_textfile

from sweeperd import redis_url
from sweeperd.cli.options import Exit, OnceOptions, Options
from sweeperd.cli.output import stage_bars
from sweeperd.metrics import Metrics
from sweeperd.runtime.last_resort import LastResort
from sweeperd.runtime.once import OnceReport, run_once
from sweeperd.runtime.process import in_own_process
from sweeperd.runtime.signals import stop_on_signals
from sweeperd.sweep.kind import Outcome
from sweeperd.text import counted
from sweeperd.tracing import tracing

#: Seconds.
PUSH_TIMEOUT = 10.0


def run(options: Options, once: OnceOptions) -> int:
    show = sys.stderr.isatty() and not options.as_json
    # A log line for each expiry would break the progress bar.
    settings = options.settings(default_level="warning" if show else None)
    if show:
        addresses = (redis_url.parse(shard.url.get_secret_value()).shown for shard in settings.all_shards)
        click.echo(f"sweeperd: on {', '.join(addresses)}", err=True)
    metrics = Metrics(**settings.metrics.model_dump(), cycles=settings.cycles.enabled, lasting=False)
    problems: list[str] = []
    with stop_on_signals(last=True) as stop:
        if in_own_process():
            grace, end = settings.shutdown_grace.total_seconds(), functools.partial(os._exit, Exit.FAILED)
            LastResort(lambda: grace, end, signal.SIGTERM, signal.SIGINT, signal.SIGHUP).start()
        try:
            bars = stage_bars(str.capitalize, show=show, show_pos=True)
            with tracing(), _exporting(metrics, once, problems), bars as progress:
                report = run_once(settings, stop, progress, metrics, once.delivery_limit)
        except Exception as error:
            logging.getLogger(__name__).exception("the run failed")
            options.fail("\n".join([f"the run failed: {type(error).__name__}", *problems]), Exit.FAILED)
        return _report(options, report, problems, zero_on_pending=once.exit_zero_on_pending)


def _report(options: Options, report: OnceReport, problems: list[str], *, zero_on_pending: bool) -> int:
    for problem in (*report.failures, *problems):
        options.report(problem)
    if not report.any_done:
        return Exit.FAILED
    if options.as_json:
        click.echo(json.dumps(report.document.as_json()))
    elif sys.stdout.isatty():
        click.echo(_summary(report))
    if problems:
        return Exit.FAILED
    return Exit.DONE if zero_on_pending and report.exit_code == Exit.UNDELIVERED else report.exit_code


@contextlib.contextmanager
def _exporting(metrics: Metrics, once: OnceOptions, problems: list[str]) -> Iterator[None]:
    """
    Write and push the metrics at the end of the block, even if it fails, so that a failed run is visible. An export
    that fails is added to `problems` and does not stop the sweep.
    """
    try:
        yield
    finally:
        try:
            if once.metrics_file is not None:
                write_to_textfile(str(once.metrics_file), metrics.registry)  # replaces the old file atomically
        except OSError as error:
            problems.append(f"the metrics cannot be written to {once.metrics_file}: {error.strerror or error}")
        try:
            if once.metrics_push is not None:
                push_to_gateway(once.metrics_push, job="sweeperd", registry=metrics.registry, timeout=PUSH_TIMEOUT)
        except (ValueError, InvalidURL):
            # These errors quote the URL, which may hold a password.
            problems.append("the metrics cannot be pushed: the URL is invalid")
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            problems.append(f"the metrics cannot be pushed: {getattr(reason, 'strerror', None) or reason}")


def _summary(report: OnceReport) -> str:
    counts, delivery = report.counts, report.delivery
    parts = [f"{counts[outcome]} {outcome.value.replace('_', ' ')}" for outcome in Outcome if counts[outcome]]
    entries, letters = counted(counts.total(), "entry", "entries"), counted(delivery.dead_lettered, "dead letter")
    swept = f"{entries} in {report.duration_seconds:.1f} s: {', '.join(parts) or 'nothing was due'}"
    return f"{swept}\n{delivery.delivered} delivered, {delivery.undelivered} waiting, {letters}"
