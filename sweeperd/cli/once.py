"""`sweeperd --once`: the run, the progress on a terminal, the report."""

import contextlib
import functools
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from http.client import HTTPException, InvalidURL
from pathlib import Path

import click
from prometheus_client import push_to_gateway, write_to_textfile

from sweeperd import redis_url
from sweeperd.cli.options import Exit, OnceOptions, Options, stop_on_signals
from sweeperd.cli.output import stage_bars
from sweeperd.config import Settings
from sweeperd.metrics import Metrics
from sweeperd.runtime.last_resort import LastResort
from sweeperd.runtime.once import OnceReport, run_once
from sweeperd.runtime.process import in_own_process
from sweeperd.sweep.kind import Outcome
from sweeperd.tracing import tracing

#: How long a Pushgateway may take, seconds.
PUSH_TIMEOUT = 10.0


def run(options: Options, once: OnceOptions) -> int:
    """Run and report. Returns the exit code, or ends the process if the run fails."""
    show = sys.stderr.isatty() and not options.as_json
    # A progress bar and a line for each expiry do not go together.
    settings = options.settings(default_level="warning" if show else None)
    if show:
        addresses = (redis_url.parse(shard.url.get_secret_value()).shown for shard in settings.all_shards)
        click.echo(f"sweeperd: on {', '.join(addresses)}", err=True)
    with stop_on_signals(last=True) as stop:
        if in_own_process():
            grace, end = settings.shutdown_grace.total_seconds(), functools.partial(os._exit, Exit.FAILED)
            LastResort(lambda: grace, end, signal.SIGTERM, signal.SIGINT, signal.SIGHUP).start()
        return _run(options, once, settings, show=show, stop=stop)


def _run(options: Options, once: OnceOptions, settings: Settings, *, show: bool, stop: threading.Event) -> int:
    metrics = Metrics(**settings.metrics.model_dump(), cycles=settings.cycles.enabled, lasting=False)
    problems: list[str] = []
    try:
        bars = stage_bars(str.capitalize, show=show, show_pos=True)
        with tracing(), _metrics_left(metrics, once, problems), bars as progress:
            report = run_once(settings, stop, progress, metrics, once.delivery_limit)
    except Exception as error:
        logging.getLogger(__name__).exception("the run failed")
        options.fail("\n".join([f"the run failed: {type(error).__name__}", *problems]), Exit.FAILED)
    for problem in (*report.failures, *problems):
        options.say(problem)
    if not report.any_done:
        return Exit.FAILED
    if options.as_json:
        click.echo(json.dumps(report.document.as_json()))
    elif sys.stdout.isatty():
        click.echo(_summary(report))
    if problems:
        return Exit.FAILED
    if once.exit_zero_on_pending and report.exit_code == Exit.UNDELIVERED:
        return Exit.DONE
    return report.exit_code


@contextlib.contextmanager
def _metrics_left(metrics: Metrics, once: OnceOptions, problems: list[str]) -> Iterator[None]:
    """
    Write and push the metrics when the block ends, also if the block fails: a failed run must not look like no run.
    What cannot be written or pushed is added to `problems`: no reason not to sweep.
    """
    try:
        yield
    finally:
        if once.metrics_file is not None:
            problems += _write_metrics(metrics, once.metrics_file)
        if once.metrics_push is not None:
            problems += _push_metrics(metrics, once.metrics_push)


def _write_metrics(metrics: Metrics, path: Path) -> list[str]:
    try:
        # Into a temporary file, which replaces the old file when complete.
        write_to_textfile(str(path), metrics.registry)
    except OSError as error:
        return [f"the metrics cannot be written to {path}: {error.strerror or error}"]
    return []


def _push_metrics(metrics: Metrics, gateway: str) -> list[str]:
    try:
        push_to_gateway(gateway, job="sweeperd", registry=metrics.registry, timeout=PUSH_TIMEOUT)
    except (ValueError, InvalidURL):
        # The URL may hold a password, and these errors show a part of the URL.
        return ["the metrics cannot be pushed: the URL cannot be used"]
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        return [f"the metrics cannot be pushed: {getattr(reason, 'strerror', None) or reason}"]
    return []


def _summary(report: OnceReport) -> str:
    counts, delivery = report.counts, report.delivery
    parts = [f"{counts[outcome]} {outcome.value.replace('_', ' ')}" for outcome in Outcome if counts[outcome]]
    swept = f"{counts.total()} entries in {report.duration_seconds:.1f} s: {', '.join(parts) or 'nothing was due'}"
    sent = f"{delivery.delivered} webhooks delivered, {delivery.undelivered} waiting, {delivery.dead_lettered} given up"
    return f"{swept}\n{sent}"
