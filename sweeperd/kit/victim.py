"""
A process that sweeps and is killed. The process sends requests to Redis one after the other; from the middle on it
reads no more replies and writes a line, so that its parent can kill it while requests are on the way. It never ends by
itself, unless the parent ends. This file needs nothing but the standard library, so that the process starts at once,
and without a path to other packages.
"""

import marshal
import socket
import sys
import time


def main() -> None:
    """The port of Redis is the argument, the requests come in on standard input."""
    requests: list[bytes] = marshal.load(sys.stdin.buffer)  # noqa: S302 - from the process that started this one
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
        for number, request in enumerate(requests):
            connection.sendall(request)
            if number < len(requests) // 2:
                connection.recv(65_536)
                continue
            if number == len(requests) // 2:
                print("in the middle", flush=True)  # noqa: T201
            time.sleep(0.001)
        sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
