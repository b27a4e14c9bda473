"""Measures how late an entry expires when nothing else is due, and what `sweep.precision` costs Redis."""

from statistics import quantiles

from benchmarks.lab import Lab
from benchmarks.row import Goal, Row, Sample
from benchmarks.rows.queues import run, sweeperd


def measure_lateness(lab: Lab) -> Sample:
    """A daemon with the default settings and no endpoint; the deadlines follow each other at even distances."""
    figures: dict[str, float] = {}
    for rate, seconds in ((5, lab.size("seconds_of_5", 40, 8)), (100, lab.size("seconds_of_100", 30, 5))):
        ran = run(lab, sweeperd(lab), rate * seconds, 1000 * seconds)
        hundredths = quantiles(ran.lateness, n=100)
        figures |= {
            f"p50_at_{rate}": hundredths[49],
            f"p99_at_{rate}": hundredths[98],
            f"earliest_at_{rate}_ms": float(ran.lateness[0]),
            f"latest_at_{rate}_ms": float(ran.lateness[-1]),
            f"redis_us_each_at_{rate}": ran.redis_cpu / len(ran.lateness) * 1e6,
            f"daemon_us_each_at_{rate}": ran.worker_cpu / len(ran.lateness) * 1e6,
        }
    ratios = {name: figures.pop(name) for name in list(figures) if name.startswith("p")}
    return Sample(ratios | {"earliest": min(figures["earliest_at_5_ms"], figures["earliest_at_100_ms"])}, figures)


def measure_cost(lab: Lab) -> Sample:
    """CPU time of Redis while 100 entries a second expire beside many in grace: by default, and by the interval."""
    seconds, in_grace = lab.size("seconds", 30, 5), lab.size("in_grace", 100_000, 10_000)
    used = {
        precision: run(
            lab, sweeperd(lab, precision=precision, in_grace=in_grace), 100 * seconds, 1000 * seconds
        ).redis_cpu
        for precision in ("50ms", "0s")
    }
    figures = {"redis_seconds": used["50ms"], "redis_seconds_by_the_interval": used["0s"]}
    return Sample({"redis": used["50ms"] / used["0s"]}, figures)


LATENESS = Row(
    "lateness",
    "from deadline to expiry, ms; nothing else is due",
    "",
    {
        "p50_at_5": Goal("at_most", 5, "median, 5 a second"),
        "p99_at_5": Goal("at_most", 15, "p99, 5 a second"),
        "p50_at_100": Goal("at_most", 30, "median, 100 a second"),
        "p99_at_100": Goal("at_most", 60, "p99, 100 a second"),
        "earliest": Goal("at_least", 0, "the earliest"),
    },
    measure_lateness,
)

COST = Row(
    "precision",
    "CPU time of Redis, 100 expiries a second beside 100,000 in grace",
    '`precision = "0s"`',
    {"redis": Goal("at_most", 1.2)},
    measure_cost,
)
