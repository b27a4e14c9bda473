"""
A process that sweeps and is killed. The process sends requests to Redis in turn; from the middle on it reads no more
replies and writes a line, so that the parent can kill the process while requests are on the way. The process ends when
the parent ends. This file needs only the standard library, so the process starts at once, without a path to packages.
"""

import marshal
import socket
import sys
import time


def main() -> None:
    """The port of Redis is the argument, the requests come in on standard input."""
    requests: list[bytes] = marshal.load(sys.stdin.buffer)  # noqa: S302 - from the parent
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
