"""An ASGI application that is served in a thread of the test's own process."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn


@contextmanager
def serving(app: Any, port: int = 0) -> Iterator[int]:
    """Until the block ends. Yields the port; 0 asks for a free one."""
    listener = socket.create_server(("127.0.0.1", port))
    config = uvicorn.Config(app, log_config=None, ws="none", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.force_exit = server.should_exit = True
        thread.join()
        listener.close()
