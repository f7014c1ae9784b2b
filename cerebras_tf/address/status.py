"""A page with the status of a server, for a browser on the same computer. It changes nothing."""

from __future__ import annotations

import html
import http.server
import threading
from collections.abc import Callable, Sequence
from typing import Any

from cerebras_tf.errors import ConfigError
from cerebras_tf.quantities import in_bytes

_REFRESH_S = 5
_WIDTH, _HEIGHT = 640, 200
_HEAD = (
    "<!doctype html><html lang=en><meta charset=utf-8>"
    f"<meta http-equiv=refresh content={_REFRESH_S}><title>Wafer</title>"
    "<style>body{font:16px sans-serif;margin:2em;max-width:42em}td{padding:.2em 1em .2em 0}"
    "polyline{fill:none;stroke:#2060c0;stroke-width:2}svg{border:1px solid #ccc}</style>"
)


def page_of(found: dict[str, Any]) -> str:
    """The page of a status; see WaferServer.status."""
    rows = {
        "used by": found["holder"] or "nobody",
        "connected": "yes" if found["connected"] else "no",
        "since": f"{found['held_s']:.0f} s",
        "waiting": ", ".join(found["waiting"]) or "nobody",
        "steps": f"{found['steps']}, {found['steps_per_s']:.3g} per second",
        "variables and activations": in_bytes(found["held_bytes"]),
        "free memory": in_bytes(found["free_bytes"]),
        "threads": str(found["threads"]),
        "compiled programs": str(found["programs"]),
        "cerebras_tf": found["version"],
    }
    table = "".join(f"<tr><td>{name}<td>{html.escape(text)}" for name, text in rows.items())
    heading = f"<h1>Wafer on {html.escape(found['host'])}</h1>"
    return f"{_HEAD}{heading}<table>{table}</table>{_curve(found['losses'])}</html>"


def _curve(losses: Sequence[Sequence[float]]) -> str:
    """The loss by global step, as a picture."""
    finite = [(step, loss) for step, loss in losses if loss - loss == 0]
    if len(finite) < 2:
        return ""
    first, last = finite[0][0], finite[-1][0]
    low, high = min(loss for _, loss in finite), max(loss for _, loss in finite)
    points = " ".join(
        f"{_WIDTH * (step - first) / max(last - first, 1):.1f},"
        f"{_HEIGHT - _HEIGHT * (loss - low) / (high - low or 1):.1f}"
        for step, loss in finite
    )
    caption = f"loss {finite[-1][1]:.6g} at step {last}; from {low:.6g} to {high:.6g}"
    return (
        f"<h2>{caption}</h2><svg width={_WIDTH} height={_HEIGHT} role=img>"
        f'<polyline points="{points}"/></svg>'
    )


def serve_page(status: Callable[[], dict[str, Any]], port: int) -> http.server.HTTPServer:
    """Serves the page on the loopback interface, on a thread of its own.

    Args:
        status: returns the status.
        port: where it listens; 0 for one that is free.

    Raises:
        ConfigError: the port is used.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            # A page of another site cannot read this one under a name of its own.
            names = "127.0.0.1", "localhost"
            host = (self.headers.get("Host") or "").rpartition(":")[0] or self.headers.get("Host")
            if self.path != "/" or host not in names:
                self.send_error(404)
                return
            content = page_of(status()).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.send_header(
                "Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'"
            )
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise ConfigError(
            f"--status_port: must be free. Received: {port} ({error.strerror}). Use another one."
        ) from error
    threading.Thread(target=server.serve_forever, name="wafer-status", daemon=True).start()
    return server
