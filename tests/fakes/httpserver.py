"""An HTTP server whose every answer is a function's, as a kubelet's or another extender's."""

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# The request and its body; the status and the body of the answer.
Answer = Callable[[BaseHTTPRequestHandler, bytes], tuple[int, bytes]]


@contextmanager
def answering(
    answer: Answer, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", port: int = 0
) -> Iterator[int]:
    """Answer every GET and POST while the context is open; the port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            status, body = answer(self, asked)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((host, port), Handler) as server:
        server.daemon_threads = True  # a client may keep its connection
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
