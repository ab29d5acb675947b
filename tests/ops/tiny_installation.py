"""`python -m tests.ops.tiny_installation`: the real supervisor over programs that cost nothing to start.

`web` answers `/health/live`; `parent` has a child process in its group; `launcher` starts a process in a session of its
own, as a worker starts a trainer; `stubborn` does not hear SIGTERM.
"""

import sys

from django.conf import settings

from webapp.supervisor import __main__ as command
from webapp.supervisor import loop
from webapp.supervisor.programs import Program

SLEEP = "import time; time.sleep(600)"
WEB = f"""
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b'{{"status": "ok"}}')
    def log_message(self, *words): pass
http.server.HTTPServer(("{settings.HOST}", {settings.PORT}), Handler).serve_forever()
"""
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEP!r}])"
LAUNCHER = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, '-c', {SLEEP!r}], start_new_session=True)
time.sleep(600)
"""
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"


def tiny_programs() -> list[Program]:
    return [
        Program("web", [sys.executable, "-c", WEB], stop_phase=2, grace_s=3),
        Program("parent", [sys.executable, "-c", PARENT], stop_phase=0, grace_s=1),
        Program("launcher", [sys.executable, "-c", LAUNCHER], stop_phase=0, grace_s=1),
        Program("stubborn", [sys.executable, "-c", STUBBORN], stop_phase=0, grace_s=1),
    ]


if __name__ == "__main__":
    loop.programs = tiny_programs
    loop.valkey_program = lambda: None  # type: ignore[assignment]
    command.prepare = lambda supervisor, demo: "signs in as nobody"  # type: ignore[assignment]
    sys.exit(command.main(sys.argv[1:]))
