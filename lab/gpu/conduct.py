"""Runs the chosen parts one after another within a budget, and keeps what each of them finds."""

import time
import traceback

from . import frame, remedies, results

RESERVE = 6  # seconds at the end of the budget: to end what runs and to write


def status_of(found):
    if found.get("errors") or found.get("passed") is False or found.get("as_expected") is False:
        return "failed"
    return "cut short" if found.get("complete") is False else "ok"


def attempted(run, found):
    """(status, reason) of something that fills in `found`. No exception gets past it."""
    try:
        run()
    except frame.Skipped as reason:
        return "skipped", str(reason)
    except frame.CutShort as reason:
        return "cut short", str(reason)
    except frame.Failed as reason:
        return "failed", str(reason)
    except (Exception, SystemExit) as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        return "failed", f"{type(error).__name__}: {error} ({at.name}, line {at.lineno})"
    finally:
        frame.end_all()  # nothing that it started is beside the next one
    status = status_of(found)
    if status == "failed":
        failures = [f"{one['case']}: {one['text'].strip()[:150]}" for one in found.get("failures", [])]
        return status, "; ".join([*map(str, found.get("errors", [])), *failures[:5], *filter(None, [found.get("why")])])
    return status, "it goes on in the next call" if status == "cut short" else ""


def run_part(setting, part, limit, kept, found):
    """Runs it and fills in its entry of the results, whose data is `found` from the first moment on."""
    budget = frame.Budget(limit)
    began = time.monotonic()
    entry = kept.parts[part.name] = {"status": "running", "date": results.now(), "seconds": 0.0, "data": found}
    if found:
        entry["went_on"] = True
    kept.write()
    frame.log(f"== {part.name} (up to {limit:.0f} s): {part.run.__doc__.splitlines()[0]}"
              + ("\n   goes on with what was found before" if found else ""))
    status, reason = attempted(lambda: part.run(setting, budget, found), found)
    entry["status"] = status
    if reason:
        entry["reason"] = reason
    entry["seconds"] = round(time.monotonic() - began, 1)
    frame.log(f"   {status} in {entry['seconds']} s" + (f": {reason[:600]}" if reason else ""))
    if status == "failed":
        kept.write()
        remedies.try_all(setting, part, budget, entry, attempted)
        entry["next"] = remedies.next_step(part.name, entry)
        frame.log(f"   next: {entry['next']}")
    entry["seconds"] = round(time.monotonic() - began, 1)
    kept.write()
    return status


def conduct(setting, chosen, budget, kept, found_before, whole_budget=False):
    """Of each part its status. One that fails does not end the others; one that does not fit is not started."""
    setting.keep = kept.write
    statuses = {}
    for part in chosen:
        left = budget.left() - RESERVE
        if left < part.least:
            reason = f"{max(0, left):.0f} s of the budget were left, and it needs at least {part.least}"
            kept.parts[part.name] = {"status": "not started", "date": results.now(), "seconds": 0, "data": None,
                                     "reason": reason}
            statuses[part.name] = "not started"
            continue
        limit = left if whole_budget else min(part.limit, left)
        statuses[part.name] = run_part(setting, part, limit, kept, found_before.get(part.name, {}))
    kept.write()
    report(statuses, kept)
    return statuses


def report(statuses, kept):
    groups = {}
    for name, status in statuses.items():
        groups.setdefault(status, []).append(name)
    frame.log("")
    for status, names in groups.items():
        frame.log(f"{status}: {', '.join(names)}")
    for name in groups.get("not started", []):
        frame.log(f"   {name} was not started: {kept.parts[name]['reason']}")
    if groups.keys() & {"not started", "cut short"}:
        frame.log("The same call again, with these results in --out or --kept, goes on where this one ended.")
    frame.log(f"results: {kept.path.name}")
