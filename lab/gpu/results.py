"""The one file that an invocation of scripts/gpu-check leaves, and the results that earlier ones left."""

import copy
import datetime
import json

from . import frame, machine

BYTES_MAX = 15 << 20  # larger files may not come back from the machine


def now():
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")


class Results:
    """Of one invocation: a result for each part, rewritten as a whole whenever there is something new."""

    def __init__(self, setting, label, folders):
        self.setting = setting
        self.parts = {}
        self.head = {"label": label, "smoke": setting.smoke, "date": now(), **setting.facts}
        day = setting.stamp.strftime("%Y-%m-%d")
        first = f"{day}-{machine.name(setting.facts)}-{label}"
        stem, number = first, 1
        while any((folder / f"{stem}.json").exists() for folder in folders):
            number += 1
            stem = f"{first}-{number}"
        setting.stem = stem
        setting.out.mkdir(parents=True, exist_ok=True)
        self.path = setting.out / f"{stem}.json"

    def text(self, parts):
        text = json.dumps({**self.head, "written": now(), "parts": parts}, indent=1) + "\n"
        setting = self.setting  # results travel; the folders of this machine stay
        for folder, name in ((setting.work, "WORK"), (setting.binaries, "BIN"), (setting.binaries.parent, "BUILD"),
                             (setting.out, "OUT"), (frame.ROOT, "ROOT"), (setting.given.python, "PYTHON")):
            if str(folder).count("/") > 1:
                text = text.replace(str(folder), name)
        return text

    def write(self):
        text = self.text(self.parts)
        if len(text) > BYTES_MAX:
            largest = max(self.parts, key=lambda name: len(json.dumps(self.parts[name])))
            text = self.text({**self.parts, largest: {**self.parts[largest], "data": None, "too_large": True}})
        temporary = self.path.with_suffix(".part")
        temporary.write_text(text)
        temporary.rename(self.path)

    def finish(self, reason):
        """What runs was cut short, and is written so."""
        for result in self.parts.values():
            if result["status"] == "running":
                began = datetime.datetime.fromisoformat(result["date"])
                result["seconds"] = round((datetime.datetime.now(datetime.timezone.utc) - began).total_seconds(), 1)
            for entry in [result, *result.get("tried", [])]:
                if entry["status"] == "running":
                    entry.update(status="cut short", reason=reason)
        self.write()


def all_kept(folders, smoke):
    """(part, its result with what its file says of the machine, the file), in the order of their dates."""
    found = []
    for path in sorted({path for folder in folders for path in folder.glob("*.json")}):
        try:
            whole = json.loads(path.read_text())
        except ValueError:
            frame.log(f"{path} is not JSON and is left aside")
            continue
        if "parts" not in whole or whole.get("smoke") != smoke:
            continue
        for name, result in whole["parts"].items():
            about = {key: whole.get(key) for key in ("gpu", "commit", "device")}
            found.append((name, {**about, **result, "machine": machine.name(whole), "file": path.name}))
    return sorted(found, key=lambda one: one[1].get("date", ""))


def counts(result):
    """Whether it says something of the part. A part that was skipped, or cut short before it found anything, does not."""
    if result["status"] in ("cut short", "running"):
        return bool(result.get("data"))
    return result["status"] not in ("skipped", "not started")


def newest(kept):
    """The newest of each part that says something, else the newest."""
    found = {}
    for name, result in kept:
        if counts(result) or name not in found or not counts(found[name]):
            found[name] = result
    return found


def alike(setting, result):
    """Whether the result is of this machine's kind and of these programs."""
    return result["commit"] == setting.facts["commit"] and result["machine"] == machine.name(setting.facts)


def to_go_on_from(setting, kept):
    """Part → what an invocation that was cut short has found of it."""
    return {name: copy.deepcopy(result["data"]) for name, result in newest(kept).items()
            if result["status"] in ("cut short", "running") and result.get("data") and alike(setting, result)}


def done_already(setting, kept):
    """Parts that are "ok" for this machine and these programs."""
    return {name: result["file"] for name, result in newest(kept).items()
            if result["status"] == "ok" and alike(setting, result)}
