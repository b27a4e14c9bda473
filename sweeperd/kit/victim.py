"""
Sends requests to Redis until the parent process kills it. Halfway it prints a line and stops reading replies, so that
it is killed while requests are in flight. It uses the standard library only, to start fast and without a path.
"""

import marshal
import socket
import sys
import time


def main() -> None:
    """Takes the port of Redis as an argument, and the requests on standard input."""
    requests: list[bytes] = marshal.load(sys.stdin.buffer)  # noqa: S302 - from the parent
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
        for number, request in enumerate(requests):
            connection.sendall(request)
            if number < len(requests) // 2:
                connection.recv(65_536)
                continue
            if number == len(requests) // 2:
                print("halfway", flush=True)  # noqa: T201
            time.sleep(0.001)
        sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
