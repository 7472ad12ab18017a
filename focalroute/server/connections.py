"""Bounds on connections: how many may be open, and how long one may take to send the head of a request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from focalroute.core.files import most_files

if TYPE_CHECKING:
    import socket

    from starlette.types import ASGIApp

_MOST_CONNECTIONS = 1000
_HEAD_S = 10.0  # for the head of a request, from the opening of the connection or its first byte
#: Between two requests. Clients and proxies close idle connections after 5 to 60 seconds; if the server did so first or
#: at the same moment, a request might be sent on a closing connection.
_IDLE_S = 75.0
_FLUSH_S = 60.0  # for a client to read the rest of a response, or to make room for more
_READ_BYTES = 16 * 1024  # at a time: in chunks of one byte each, 256 KiB hold the event loop for a second
_BACKLOG = 2048
_LATE_S = 0.05  # for connections to appear that were accepted while the listening socket closed


class BoundedServer(uvicorn.Server):
    """A server that stops once the requests under way have ended, even if new connections came at the last moment."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Also close late connections, for which uvicorn would wait as long as asks may take."""
        asyncio.get_running_loop().call_later(_LATE_S, self._close_connections)
        await super().shutdown(sockets)

    def _close_connections(self) -> None:
        for connection in tuple(self.server_state.connections):
            connection.shutdown()


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 with bounds: closes connections that are idle, slow to send or to read, or beyond the maximum.

    A new connection has `head_s` seconds to send the whole head of a request; uvicorn itself stops its timer at the
    first byte. After a response the connection may be idle for `idle_s` seconds (`head_s` while more than half of the
    connections are taken). From the next byte on it again has `head_s`.
    """

    max_connections = _MOST_CONNECTIONS
    head_s = _HEAD_S
    idle_s = _IDLE_S
    flush_s = _FLUSH_S
    _timer: asyncio.TimerHandle | None = None
    _idle = False
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer, or close the connection at once if too many are open."""
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            transport.abort()
            return
        transport.max_size = _READ_BYTES  # type: ignore[attr-defined]
        self._start(self.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        self._stop()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start the timer within which the client must go on reading."""
        super().pause_writing()
        self._unread = self.loop.call_later(self.flush_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop that timer."""
        if self._unread is not None:
            self._unread.cancel()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Start the timer for the head of a request at its first byte."""
        if self._idle:
            self._idle = False
            self._start(self.head_s)
        super().data_received(data)

    def handle_events(self) -> None:
        """Stop the timer once a request is under way; if its length is ambiguous, accept no further request.

        A proxy before the server may go by Content-Length where h11 goes by Transfer-Encoding. The bytes that follow
        would then be a request to one of them, and part of the body to the other (RFC 9112, section 6.1).
        """
        super().handle_events()
        if not self._waiting():
            self._stop()
            if {b"content-length", b"transfer-encoding"} <= {name for name, _ in self.headers}:
                self.cycle.keep_alive = False

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: Java asks for HTTP/2 on every connection, and gets HTTP/1.1."""

    def send_400_response(self, msg: str) -> None:
        """Drop the response under way: no more of it can be sent, and trying to would log a traceback."""
        if self.cycle is not None:
            self.cycle.disconnected = True
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:  # a response has begun, or was sent before its request was complete
            self.transport.close()

    def on_response_complete(self) -> None:
        """Start our timer in place of uvicorn's, unless the next request is already there."""
        super().on_response_complete()
        self._unset_keepalive_if_required()
        if self._waiting():
            self._idle = True
            crowded = 2 * len(self.connections) > self.max_connections
            self._start(self.head_s if crowded else self.idle_s)

    def _waiting(self) -> bool:
        """Whether no request is under way; the rest of a body whose response is complete does not count as one."""
        return self.cycle is None or self.cycle.response_complete

    def _start(self, seconds: float) -> None:
        self._stop()
        self._timer = self.loop.call_later(seconds, self._time_out)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        if self.transport.get_write_buffer_size() == 0:
            self.transport.abort()
            return
        self.transport.close()
        self._timer = self.loop.call_later(self.flush_s, self.transport.abort)


def server_config(app: ASGIApp, shutdown_s: int, protocol: type[BoundedProtocol] | None = None) -> uvicorn.Config:
    """Return uvicorn's settings for serving this application.

    Args:
        protocol: a protocol with other bounds; None: the documented bounds, with fewer connections if the process may
            open few files.
    """
    limits: dict[str, Any] = {}
    files = most_files()
    if files is not None:
        limits["max_connections"] = max(1, min(_MOST_CONNECTIONS, files // 4))  # half are for connections to services
    # All connections in the backlog may be accepted, and open for a moment, before the first is counted.
    backlog = _BACKLOG if files is None else max(16, min(_BACKLOG, files // 8))
    return uvicorn.Config(
        app,
        http=protocol or type("BoundedByFiles", (BoundedProtocol,), limits),
        backlog=backlog,
        log_config=None,  # only warnings are shown
        access_log=False,
        ws="none",
        lifespan="off",  # the caller closes the ensemble; uvicorn prints a traceback at a second Ctrl-C
        server_header=False,
        timeout_graceful_shutdown=shutdown_s,
    )
