"""Where servers that are measured may listen."""

import socket


def free_port() -> int:
    """Of 127.0.0.1; nobody keeps it free."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port
