"""A Python that has imported torch and runs scripts in forks of itself, so that scripts need not import torch again.

    warm_python.py serve           with a listening socket as standard input, until it is killed
    warm_python.py ask PATH ...    does the same as `python ...`, by the server that listens at PATH

The client sends its words, environment, folder and open files, and ends as the script ends. If the client ends first,
the script is killed. Words are [-W ACTION] FILE ... or [-W ACTION] -c SCRIPT ...
"""
import json
import os
import signal
import socket
import sys

FILES = 3  # standard input, output and error
WIDEST = 1 << 20  # bytes of a request


def ask(path, words):
    request = {"words": words, "environment": dict(os.environ), "folder": os.getcwd()}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, WIDEST)
        server.connect(path)
        socket.send_fds(server, [json.dumps(request).encode()], list(range(FILES)))
        answer = server.recv(16)
    if not answer:
        sys.exit("the warm Python has gone")
    code = int(answer)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


class Script:
    def __init__(self, words):
        self.warnings = []
        while words[0] == "-W":
            self.warnings.append(words[1])
            words = words[2:]
        self.is_text = words[0] == "-c"
        self.arguments = words[2:] if self.is_text else words[1:]
        self.name = "-c" if self.is_text else words[0]
        self.source = words[1] if self.is_text else open(words[0], encoding="utf-8").read()

    def imports(self):
        """Returns the names after `import` in the script, and those that optimizers import in their first step."""
        import ast

        if "optim" in self.source:
            yield "torch._dynamo"
        for node in ast.walk(ast.parse(self.source)):
            if isinstance(node, ast.Import):
                yield from (each.name for each in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module

    def run(self):
        import warnings

        for action in self.warnings:
            warnings.simplefilter(action)
        sys.argv = [self.name, *self.arguments]
        sys.path[0] = "" if self.is_text else os.path.dirname(os.path.abspath(self.name))
        exec(compile(self.source, self.name, "exec"), {"__name__": "__main__", "__file__": self.name})


def become(script, request, files):
    """Never returns."""
    import atexit
    import traceback

    code = 0
    try:
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        script.run()
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def keep(script, request, files, asker):
    """Runs the script in its own process and reports how it ended. Never returns."""
    import select

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    process = os.fork()
    if process == 0:
        asker.close()
        become(script, request, files)
    for file in files:
        os.close(file)
    select.select([os.pidfd_open(process), asker], [], [])
    os.kill(process, signal.SIGKILL)  # the client is gone, or the script has ended and this has no effect
    _, status = os.waitpid(process, 0)
    try:
        asker.send(str(os.waitstatus_to_exitcode(status)).encode())
    finally:
        os._exit(0)


def import_torch(name="torch"):
    """Imports a module of torch here, once for all later scripts that need it."""
    import contextlib
    import importlib

    with contextlib.suppress(ImportError):  # the error of the script is clearer
        importlib.import_module(name)


def serve():
    listener = socket.socket(fileno=os.dup(0))
    with open(os.devnull, encoding="utf-8") as nothing:
        os.dup2(nothing.fileno(), 0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    import_torch()
    while True:
        asker, _ = listener.accept()
        message, files, _, _ = socket.recv_fds(asker, WIDEST, FILES)
        if message:
            request = json.loads(message)
            script = Script(request["words"])
            for name in script.imports():
                if name.split(".")[0] == "torch":
                    import_torch(name)
            if os.fork() == 0:
                listener.close()
                keep(script, request, files, asker)
        for file in files:
            os.close(file)
        asker.close()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        ask(sys.argv[2], sys.argv[3:])
