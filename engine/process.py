"""How each kind of engine process begins: with one end of a socket pair, as the daemon starts it."""

import argparse
import logging
import signal
import socket
import sys


def begin(description: str) -> socket.socket:
    """Read the command line, and log to stderr. Returns the daemon's socket.

    Ctrl-C in a terminal reaches the whole process group; the daemon decides when the engine ends.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--fd", type=int, required=True, help="inherited socket to the daemon")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return socket.socket(fileno=arguments.fd)
