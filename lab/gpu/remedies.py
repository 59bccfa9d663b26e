"""What is tried when a part fails, cheapest first, and what to do next."""

from . import frame, gtests

AGAIN, GRAPHS, OWN = "nothing changed", "GNOMON_GRAPHS=off", "GNOMON_ATTENTION=own"
ALONE, MEMCHECK = "each case alone", "memcheck"
# What passes the second time would seem to be helped by whatever was changed, so nothing is changed first. The tests of
# kernels neither record passes nor call cuDNN.
TABLE = {
    "kernels": [ALONE, MEMCHECK],
    "engine": [AGAIN, GRAPHS, OWN, ALONE, MEMCHECK],
    **{name: [AGAIN, GRAPHS, OWN] for name in ("steps-small", "steps-3b", "steps-7b", "overheads", "convergence", "loop")},
    "block": [AGAIN, OWN],
}
LEAST = 8  # seconds that a remedy is worth trying with
CASES_MAX = 5  # under memcheck

# What a remedy that helped says.
HELPED = {
    AGAIN: "It passes when it is run again: it depends on time or order. Compare both results' data.",
    GRAPHS: "With GNOMON_GRAPHS=off it passes: recorded passes are at fault. Set it for the next calls; look at what "
            "docs/decisions/0020 lists.",
    OWN: "With GNOMON_ATTENTION=own it passes: cuDNN's attention is at fault. Set it for the next calls (steps are then "
         "far slower); look at the result of the part attention.",
    ALONE: "Each failing case passes in a process of its own: an earlier case left the device in error. Look at the first "
           "failure.",
    MEMCHECK: "memcheck finds no bad access in the failing cases: the values are wrong, not the addresses. Look at the "
              "first failure's text.",
}
# What a part says that nothing helped.
OTHERWISE = {
    "facts": "The programs do not start or see no device: look at the driver's version and GNOMON_CUDA_LIBRARIES.",
    "kernels": "Look at the first failure, and at what memcheck says of it; until it is mended only gemm of calls 2 and 3 means "
               "something.",
    "engine": "Look at the first failure by recipe: bf16 at fault means backend, one FP8 recipe its scales.",
    "attention": "Set GNOMON_ATTENTION=own for the next calls, and look at the case that is not near FP64.",
    "accumulation": "The steps are measured all the same: choose the default of accumulate = \"hopper\" by the rules tied "
                    "for best in the result.",
    "racecheck": "Look at the kernel that is named: two threads of a block touch a word with no barrier between them.",
    "memcheck": "Look at the kernel that is named: it touches memory that is not its own.",
    "loop": "Read the report beside the result and the logs in the work folder's loop.",
}
GENERAL = "Read its reason in the result, mend it, and call the same again: what was measured is kept."


def variable(setting, words, part, budget, found):
    """The part again, with a variable of the environment."""
    before = setting.environment
    if words != AGAIN:
        name, value = words.split("=")
        setting.environment = {**before, name: value}
    try:
        part.run(setting, budget, found)
    finally:
        setting.environment = before


def once(setting, words, part, budget, failed, found):
    """One remedy. Of a test program only the failing cases are run again, of steps only those not measured."""
    cases = [failure["case"] for failure in failed.get("failures", [])]
    if words == ALONE:
        gtests.alone(setting, budget, found, part.name, cases)
    elif words == MEMCHECK:
        gtests.sanitized(setting, budget, found, "memcheck", gtests.PROGRAMS[part.name], cases[:CASES_MAX])
        found["passed"] = found["hazards"] == 0  # they fail here too; the question is why
    else:
        if cases:
            found["only"] = cases
        if failed.get("steps"):
            found["leave_out"] = [[step["asked_for"], step["asked_length"]] for step in failed["steps"]]
        variable(setting, words, part, budget, found)


def worth(words, part, failed, setting):
    """Whether it can tell anything: cases have to have a name, a variable must not be set already."""
    if words in (ALONE, MEMCHECK):
        return bool(failed.get("failures"))
    if words == AGAIN:
        return True
    name, value = words.split("=")
    return setting.environment.get(name) != value


def try_all(setting, part, budget, entry, attempt):
    """Fills in entry["tried"] until one helps or the time is used up. `attempt(function, found)` gives status and
    reason."""
    failed = entry["data"] or {}
    tried = entry["tried"] = []
    for words in TABLE.get(part.name, []):
        if not worth(words, part, failed, setting):
            continue
        found = {}
        one = {"with": words, "status": "running", "data": found}
        tried.append(one)
        if budget.left() < LEAST:
            one.update(status="not started", reason="no time was left")
            continue
        frame.log(f"   trying {words}")
        status, reason = attempt(lambda: once(setting, words, part, budget, failed, found), found)
        one["status"] = status
        if reason:
            one["reason"] = reason
        setting.keep()
        frame.log(f"   {words}: {status}" + (f": {reason[:300]}" if reason else ""))
        if status == "ok":
            return


def next_step(name, entry):
    """A plain sentence."""
    for one in entry.get("tried", []):
        if one["status"] == "ok":
            return HELPED[one["with"]]
    return OTHERWISE.get(name, GENERAL)
