"""What every part of scripts/gpu-check needs: where it runs, and commands with an end that leave no process behind."""

import contextlib
import ctypes
import datetime
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NO_DEVICE = 3  # what our programs end with where there is no GPU
GRACE = 4.0  # seconds between the request to end and the end
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


class Skipped(Exception):
    """There is nothing here that the part could run on; the text says what."""


class Failed(Exception):
    """A command of the part ended badly; the text says how."""


class CutShort(Exception):
    """The part's time was used up; the text says where."""


class Budget:
    """The seconds that something has."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def left(self):
        return self.end - time.monotonic()

    def check(self, where):
        if self.left() <= 0:
            raise CutShort(f"the time was used up: {where}")


class Setting:
    """Where and how the parts run. `smoke`: tiny sizes on the CPU, to see that everything works."""

    def __init__(self, binaries, out, work, smoke, given):
        self.binaries = pathlib.Path(binaries).resolve()
        self.out = pathlib.Path(out).resolve()
        self.work = pathlib.Path(work).resolve()
        self.smoke = smoke
        self.given = given  # the command line's options
        self.device = "cpu" if smoke else "cuda"
        self.threads = min(os.cpu_count() or 1, 2 if smoke else 16)
        self.environment = environment(given.python)
        self.stamp = datetime.datetime.now(datetime.timezone.utc)
        self.facts = {}  # of the machine: gpu/machine.py
        self.stem = "result"  # of the names of all files that an invocation leaves
        self.keep = lambda: None  # writes what was found so far

    def program(self, name):
        """In bin/ of a build or a bundle, or in tests/ of a build."""
        for folder in (self.binaries, self.binaries.parent / "tests"):
            if (folder / name).is_file():
                return str(folder / name)
        raise Skipped(f"{name} is not in {self.binaries}: not built, or not in the bundle")

    def beside(self, name):
        """A file of that name beside the results."""
        self.out.mkdir(parents=True, exist_ok=True)
        return self.out / f"{self.stem}-{name}"


def environment(python):
    """Threads that wait for each other sleep; CUDA's libraries are found where pip put them."""
    found = dict(os.environ)
    found.setdefault("OMP_WAIT_POLICY", "passive")
    if "GNOMON_CUDA_LIBRARIES" not in found:
        folder = quiet([python, "-c", "import nvidia; print(':'.join(nvidia.__path__))"])
        if folder:
            found["GNOMON_CUDA_LIBRARIES"] = folder
    return found


# ---- processes and signals ----

GROUPS = {}  # process group → the process that leads it, of all that were started and have not ended


class Signals:
    """What a signal does, and one that came while it must not be acted upon."""

    act = None
    held = False
    came = None


def on_signals(act):
    """`act(signal)` when we are asked to end, or when the alarm rings; never while a process is being started."""
    Signals.act = act
    for sign in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        signal.signal(sign, arrived)


def arrived(sign, _):
    if Signals.held:
        Signals.came = sign
    else:
        Signals.held = True  # one is enough
        Signals.act(sign)


@contextlib.contextmanager
def signals_held():
    before, Signals.held = Signals.held, True
    try:
        yield
    finally:
        Signals.held = before
        if Signals.came is not None and not before:
            sign, Signals.came = Signals.came, None
            arrived(sign, None)


def in_the_child():
    """The kernel ends it when we are killed so that we can end nothing."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def start(setting, command, **more):
    """The one place where processes begin: each leads a group, which is known until it has ended. What was found before is
    kept first."""
    if setting is not None:
        setting.keep()
        more.setdefault("env", setting.environment)
    with signals_held():
        process = subprocess.Popen([str(word) for word in command], start_new_session=True, preexec_fn=in_the_child,
                                   **more)
        GROUPS[process.pid] = process
    return process


def signalled(group, sign):
    """Whether the group is there to be sent a signal."""
    try:
        os.killpg(group, sign)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def end_all(processes=None, grace=GRACE):
    """Ends the groups of these processes, or of all: asked first, and made after `grace` seconds."""
    groups = [process.pid for process in processes] if processes is not None else list(GROUPS)
    groups = [group for group in groups if group in GROUPS]

    def there(group):
        GROUPS[group].poll()
        return signalled(group, 0)

    for group in groups:
        if there(group):
            signalled(group, signal.SIGTERM)
    until = time.monotonic() + grace
    while any([there(group) for group in groups]) and time.monotonic() < until:
        time.sleep(0.02)
    for group in groups:
        signalled(group, signal.SIGKILL)
        process = GROUPS.pop(group)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1)


def stop(process, seconds):
    """Asks a process that we started to end, and makes it and its group; its status."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=seconds)
    end_all([process])
    return process.returncode


def closed(process):
    """Its group is ended, and what it was read from closed."""
    end_all([process])
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


# ---- commands ----

def quiet(command, seconds=30, **more):
    """What a command prints, or nothing where it cannot run, fails or does not end."""
    try:
        process = start(None, command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, **more)
    except OSError:
        return ""
    try:
        out, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return ""
    finally:
        closed(process)
    return out.strip() if process.returncode == 0 else ""


def run(setting, command, budget, cwd=None, statuses=(0,), merged=False):
    """Runs to its end or to the part's, and returns (status, stdout). Its process group is ended with it."""
    budget.check("before " + shown(command))
    process = start(setting, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT if merged else subprocess.PIPE,
                    text=True, cwd=cwd)
    try:
        out, errors = process.communicate(timeout=max(1.0, budget.left()))
    except subprocess.TimeoutExpired:
        raise CutShort("at the limit: " + shown(command)) from None
    finally:
        closed(process)
    if process.returncode == NO_DEVICE and NO_DEVICE not in statuses:
        raise Skipped(last_lines(errors or out, 1))
    if process.returncode not in statuses:
        raise Failed(f"{shown(command)} ended with status {process.returncode}: {last_lines(errors or out, 12)}")
    return process.returncode, out


def run_json(setting, command, budget, **more):
    """The JSON object that a command prints last."""
    _, out = run(setting, command, budget, **more)
    at = out.find("{")
    if at < 0:
        raise Failed(f"{shown(command)} printed no JSON: {last_lines(out, 3)}")
    return json.loads(out[at:])


def follow(setting, command, budget, take, silence):
    """Runs a command and gives each line that it prints to `take` as it comes; its status, or None where it said nothing
    for `silence` seconds and was ended."""
    budget.check("before " + shown(command))
    process = start(setting, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    pipe, rest, last_output = process.stdout.fileno(), b"", time.monotonic()
    try:
        while True:
            budget.check("during " + shown(command))
            if select.select([pipe], [], [], min(1.0, max(0.0, budget.left())))[0]:
                piece = os.read(pipe, 65536)
                if not piece:
                    break
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    take(line.decode(errors="replace"))
                last_output = time.monotonic()
            elif time.monotonic() - last_output > silence:
                return None
        if rest:
            take(rest.decode(errors="replace"))
        process.wait(timeout=max(1.0, budget.left()))
    except subprocess.TimeoutExpired:
        raise CutShort("at the limit: " + shown(command)) from None
    finally:
        closed(process)
    return process.returncode


def shown(command):
    words = " ".join(str(word) for word in command)
    return words if len(words) < 300 else words[:300] + " ..."


def last_lines(text, count):
    return "\n".join(text.strip().splitlines()[-count:]) or "it said nothing"


def log(text):
    print(text, file=sys.stderr, flush=True)
