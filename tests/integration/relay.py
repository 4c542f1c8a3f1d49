"""A TCP relay in user space: delays data by a fixed time, and can cut its connections."""
import selectors
import socket
import threading
import time


class Relay:
    """Listens at (host, port) and connects each client to `target`; delays by `delay` seconds in each direction."""

    def __init__(self, host, port, target, delay=0.0):
        self.target, self.delay = target, delay
        self.passed = 0  # bytes
        self.pairs = []
        self.stopping = False
        self.listener = socket.create_server((host, port))
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def cut(self):
        """Ends every connection, and accepts no more."""
        self.stopping = True
        self.thread.join()

    def serve(self):
        with selectors.DefaultSelector() as ready:
            ready.register(self.listener, selectors.EVENT_READ, self.accept)
            waiting = []  # (when, to, bytes), in order of arrival
            while not self.stopping:
                soon = waiting[0][0] - time.monotonic() if waiting else 0.05
                for key, _ in ready.select(max(0.0, min(0.05, soon))):
                    key.data(ready, key.fileobj, waiting)
                while waiting and waiting[0][0] <= time.monotonic():
                    _, to, content = waiting.pop(0)
                    self.send(to, content)
        self.listener.close()
        for pair in self.pairs:
            for one in pair:
                one.close()

    def accept(self, ready, listener, _waiting):
        client, _ = listener.accept()
        try:
            server = socket.create_connection(self.target, timeout=5)
        except OSError:
            client.close()  # no listener yet: behave like a refused connection
            return
        self.pairs.append((client, server))
        for source, sink in ((client, server), (server, client)):
            source.setblocking(True)
            ready.register(source, selectors.EVENT_READ, self.reader(sink))

    def reader(self, sink):
        def read(ready, source, waiting):
            try:
                content = source.recv(1 << 16)
            except OSError:
                content = b""
            if not content:
                ready.unregister(source)
            self.passed += len(content)
            waiting.append((time.monotonic() + self.delay, sink, content))
        return read

    @staticmethod
    def send(sink, content):
        try:
            if content:
                sink.sendall(content)
            else:
                sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the peer has gone: the other direction reports it too
