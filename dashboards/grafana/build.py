#!/usr/bin/env python3
"""Writes the Grafana dashboards beside it, in dashboards/: change PANELS here, run it, check both in.

--check writes nothing and fails when a file is not what this script writes.
"""

import argparse
import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).parent / "dashboards"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24  # columns of Grafana's grid

# In expressions: {} selects the chosen run, {*} the chosen daemon, [] is the rate interval.
DAEMON = 'job=~"$job", instance=~"$instance"'
RUN = DAEMON + ', run="$run"'

BLUE, PALE_BLUE, ORANGE = "#1f6fb5", "#8ab8de", "#d9820f"
RED, GREEN, GREY, VIOLET, PALE_GREY = "#b3261e", "#1f7a4d", "#98a2ac", "#7a6aa8", "#dfe5ea"
DASHED = {"custom.lineStyle": {"fill": "dash", "dash": [8, 6]}}
STEPPED = {"custom.lineInterpolation": "stepAfter"}
LOGARITHMIC = {"scaleDistribution": {"type": "log", "log": 10}}

# How each kind of panel draws: Grafana's type, "custom" of its fields, and its options.
BELOW = {"displayMode": "list", "placement": "bottom"}
BESIDE = {"displayMode": "table", "placement": "right", "calcs": ["lastNotNull"], "width": 330}
NUMBER = {
    "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    "colorMode": "value",
    "graphMode": "none",
}
STATES = {
    "mergeValues": True,
    "showValue": "never",
    "rowHeight": 0.85,
    "alignValue": "left",
    "legend": {**BELOW, "showLegend": False},
    "tooltip": {"mode": "single", "sort": "none"},
}


def line(fill, points="never"):
    custom = {"lineWidth": 1} | ({} if fill is None else {"fillOpacity": fill})
    return custom | {"showPoints": points, "spanNulls": True}


def options(legend, sort="none"):
    return {"legend": legend, "tooltip": {"mode": "multi", "sort": sort}}


BARS = {
    "drawStyle": "bars",
    "lineWidth": 1,
    "fillOpacity": 70,
    "showPoints": "never",
    "stacking": {"mode": "normal", "group": "A"},
}
KINDS = {
    "number": ("stat", None, {**NUMBER, "textMode": "auto"}),
    "word": ("stat", None, {**NUMBER, "textMode": "name"}),
    "plain lines": ("timeseries", line(None), options(BELOW)),
    "lines": ("timeseries", line(0), options(BELOW)),
    "area": ("timeseries", line(8), options(BELOW)),
    "trend": ("timeseries", line(0, "auto"), options({**BELOW, "calcs": []}, "desc")),
    "largest": ("timeseries", line(0, "auto"), options(BESIDE, "desc")),
    "smallest": ("timeseries", line(0, "auto"), options(BESIDE, "asc")),
    "bars": ("timeseries", BARS, options(BELOW)),
    "states": ("state-timeline", {"lineWidth": 0, "fillOpacity": 90}, STATES),
}


def panel(number, width, kind, unit, title, description, *queries, **more):
    """`queries` are pairs of expression and legend. `more`: thresholds ((colour, from), ...), colors
    {series: colour}, series {series: properties}, custom, and defaults of the fields (decimals, min)."""
    return {
        "number": number,
        "width": width,
        "kind": kind,
        "unit": unit,
        "title": title,
        "description": description,
        "queries": queries,
        "more": more,
    }


# Rows of the dashboard: their height, and their panels from left to right. A panel keeps its number for good: links
# name it.
RUN_ROWS = [
    (4, [
        panel(31, 4, "word", "none", "Verdict",
              "What to know of the run before anything else, as of this moment: good, contained, under investigation, "
              "held, or what needs a person: unverified, silent, harmful, unstable. The page and `gnomon status` say "
              "why.",
              ("gnomon_run_verdict{} == 1", "{{verdict}}"),
              colors={"good": "green", "contained": "orange", "under_investigation": "orange", "held": "orange",
                      "unverified": "red", "silent": "red", "harmful": "red", "unstable": "red", "ended": "text"}),
        panel(1, 4, "word", "none", "Phase",
              "What the controller is doing with the run: watching, triage, attribution, containing (an action is "
              "under way), contained (pinned or in BF16, and quiet), returning (probes), holding (paused until a "
              "person has looked) or ended.",
              ("gnomon_run_state{} == 1", "{{state}}")),
        panel(2, 3, "number", "none", "Step", "Newest step that the trainer has reported.",
              ("gnomon_run_step{}", "{{run}}"), decimals=0),
        panel(3, 2, "number", "none", "Attempt", "Present attempt; a rollback or a restart begins the next one.",
              ("gnomon_run_attempt{}", "{{run}}")),
        panel(4, 4, "number", "none", "Verified step",
              "Step of the last checkpoint that a quiet window has verified: a rollback goes there.",
              ("gnomon_run_verified_step{}", "{{run}}")),
        panel(5, 3, "number", "percentunit", "Verification share",
              "Seconds of replays and evaluations, on whatever devices, as a share of those and of training's, in the "
              "last rate interval.",
              ("sum by (run) (rate(gnomon_run_verify_seconds_total{}[])) / "
               "(sum by (run) (rate(gnomon_run_verify_seconds_total{}[])) + "
               "sum by (run) (rate(gnomon_run_train_seconds_total{}[])))", "{{run}}")),
        panel(6, 4, "number", "s", "Time since last report",
              "How long ago the trainer's newest report came. The trainer spools its reports while the controller is "
              "away.",
              ("time() - gnomon_run_last_report_timestamp_seconds{}", "{{run}}"),
              thresholds=(("green", None), ("orange", 60), ("red", 300))),
    ]),
    (9, [
        panel(7, 12, "plain lines", "none", "Training loss and BF16 shadow",
              "The run's newest training loss. Over it, at the newest verified step, the loss of the BF16 shadow and "
              "the run's own loss at that same step.",
              ("gnomon_run_loss{}", "run"),
              ("gnomon_run_shadow_loss{}", "BF16 shadow"),
              ("gnomon_run_paired_loss{}", "run at the verified step"),
              colors={"run": BLUE, "BF16 shadow": ORANGE, "run at the verified step": PALE_BLUE},
              series={"BF16 shadow": DASHED}, custom={"axisLabel": "nats per token"}, decimals=3),
        panel(8, 12, "lines", "percentunit", "Gap to BF16",
              "How much worse the run's weights are than the BF16 shadow's at the end of the newest window, as a "
              "share of the loss, with the tolerance. The offset is what evaluating in FP8 costs at equal weights; "
              "it is no damage.",
              ("gnomon_run_gap_ratio{}", "gap"),
              ("gnomon_run_gap_tolerance_ratio{}", "tolerance"),
              ("gnomon_run_offset_ratio{}", "offset"),
              colors={"gap": BLUE, "tolerance": RED, "offset": VIOLET},
              series={"gap": STEPPED, "tolerance": DASHED | STEPPED, "offset": STEPPED}, decimals=2),
    ]),
    (9, [
        panel(9, 12, "states", "percentunit", "Precision of each layer",
              "Share of each layer's GEMMs that run in FP8: blue is all FP8, orange is all BF16.",
              ("gnomon_run_layer_precision{}", "{{layer}}"),
              thresholds=((ORANGE, None), (PALE_BLUE, 0.01), (BLUE, 0.999))),
        panel(10, 12, "bars", "none", "Decisions",
              "Decisions in the last rate interval, by kind. The sentences are on the daemon's page and in `gnomon "
              "decisions`.",
              ("sum by (kind) (increase(gnomon_run_decisions_total{}[]))", "{{kind}}"), decimals=0),
    ]),
    (8, [
        panel(11, 8, "area", "none", "Verification lag",
              "Newest step minus the last verified one: so many steps nobody has verified. It grows when the "
              "verifiers cannot keep up, or when there is none.",
              ("gnomon_run_verification_lag_steps{}", "steps"), custom={"axisLabel": "steps"}, decimals=0),
        panel(12, 8, "bars", "none", "Windows closed",
              "Windows closed in the last rate interval, by outcome.",
              ("sum by (outcome) (increase(gnomon_run_windows_total{}[]))", "{{outcome}}"),
              colors={"quiet": GREEN, "alarm": RED, "skipped": GREY, "failed": ORANGE}, decimals=1),
        panel(13, 8, "lines", "none", "Replays waiting and leased",
              "Replays that wait for a verifier, and leases held now, over all runs of the daemon.",
              ("sum(gnomon_replays_queued{*})", "waiting"),
              ("sum(gnomon_leases_active{*})", "leased"), decimals=0),
    ]),
    (8, [
        panel(14, 8, "area", "none", "Throughput",
              "Tokens trained per second.",
              ("sum by (run) (rate(gnomon_run_tokens_total{}[]))", "{{run}}"),
              custom={"axisLabel": "tokens per second"}, decimals=0),
        panel(15, 8, "lines", "s", "Step time",
              "Median and 95th percentile of a step's wall time.",
              ("histogram_quantile(0.5, sum by (le, run) (rate(gnomon_run_step_duration_seconds_bucket{}[])))",
               "median"),
              ("histogram_quantile(0.95, sum by (le, run) (rate(gnomon_run_step_duration_seconds_bucket{}[])))",
               "95th percentile")),
        panel(16, 8, "lines", "none", "Gradient norm and learning rate",
              "Gradient norm before clipping (left) and learning rate (right).",
              ("gnomon_run_grad_norm{}", "gradient norm"),
              ("gnomon_run_learning_rate{}", "learning rate"),
              series={"learning rate": {"custom.axisPlacement": "right", "unit": "sci"}}),
    ]),
    (8, [
        panel(21, 6, "trend", "none", "Net speed-up",
              "Measured speed over BF16 without any verification when everything is paid, beside that of FP8's steps "
              "alone. Empty until FP8's speed is measured: what the policy assumes is not shown. Below 1 the run "
              "would be faster in BF16.",
              ("gnomon_run_net_speedup_ratio{}", "{{run}} net"),
              ("gnomon_run_speedup_ratio{}", "{{run}} steps alone")),
        panel(22, 6, "trend", "percentunit", "Verification of everything paid",
              "Share of everything paid since the start that went into verification, with spare devices that waited.",
              ("gnomon_run_verification_ratio{}", "{{run}}")),
        panel(23, 6, "trend", "none", "Hazard",
              "Faults of FP8 per FP8 step as learned so far: the mean, which the optimised cadence follows.",
              ("gnomon_run_hazard_per_step{}", "{{run}}"), custom=LOGARITHMIC),
        panel(24, 6, "trend", "none", "Steps rolled back",
              "Steps that rollbacks took away since the start: they were paid and not kept.",
              ("gnomon_run_steps_lost{}", "{{run}}")),
    ]),
    (10, [
        panel(17, 12, "largest", "percentunit", "Tensor underflow",
              "Of the nonzero elements of a tensor, the share that rounding made zero: the eight worst roundings in "
              "use at the newest step that was looked at ([statistics] of the trainer's file).",
              ("topk(8, gnomon_run_tensor_underflow_ratio{})", "{{site}} {{tensor}} {{gemm}}"), min=0),
        panel(18, 12, "largest", "percentunit", "Tensor saturation",
              "Share of a tensor's elements whose scaled value is beyond the format's largest: the eight worst "
              "roundings in use. Healthy scaling keeps it at 0; above 0.001% is a sign.",
              ("topk(8, gnomon_run_tensor_saturation_ratio{})", "{{site}} {{tensor}} {{gemm}}"), min=0),
    ]),
    (10, [
        panel(19, 12, "smallest", "dB", "Tensor SQNR",
              "Signal to quantisation noise of the eight worst roundings in use, in decibels: six more are half the "
              "error.",
              ("bottomk(8, gnomon_run_tensor_sqnr_decibels{})", "{{site}} {{tensor}} {{gemm}}")),
        panel(20, 12, "largest", "none", "Tensor kurtosis",
              "Kurtosis of the eight tensors with the heaviest tails (3 for a normal distribution). Leaving its trend "
              "is an early sign of outliers.",
              ("topk(8, gnomon_run_tensor_kurtosis{})", "{{site}} {{tensor}}")),
    ]),
    (8, [
        panel(25, 6, "trend", "watt", "GPU power",
              "Power that the GPU of rank 0 draws, and its limit. At the limit the driver holds the clock back "
              "(sw_power_cap), which is usual under load.",
              ("gnomon_device_power_watts{}", "{{run}} {{device}}"),
              ("gnomon_device_power_limit_watts{}", "{{run}} limit")),
        panel(26, 6, "trend", "celsius", "GPU temperature",
              "Temperature of the chip.",
              ("gnomon_device_temperature_celsius{}", "{{run}} {{device}}")),
        panel(27, 6, "trend", "hertz", "GPU clock",
              "Clock of the multiprocessors: where it falls, steps take longer.",
              ("gnomon_device_sm_clock_hertz{}", "{{run}} {{device}}")),
        panel(28, 6, "trend", "bytes", "GPU memory in use",
              "Memory in use by all programs on the GPU.",
              ("gnomon_device_memory_used_bytes{}", "{{run}} {{device}}")),
    ]),
    (8, [
        panel(29, 12, "states", "none", "GPU held back by",
              "Why the clock is held back: sw_power_cap is usual under load; thermal slowdowns and power brakes are "
              "not.",
              ("gnomon_device_throttled{}", "{{reason}}"), thresholds=((PALE_GREY, None), (ORANGE, 1))),
        panel(30, 12, "bars", "none", "GPU memory errors",
              "ECC errors in the last rate interval, corrected and uncorrected. Uncorrected ones put the device under "
              "suspicion for whatever differs from its replay.",
              ("sum by (device, kind) (increase(gnomon_device_ecc_errors_total{}[]))", "{{device}} {{kind}}"),
              decimals=1),
    ]),
]


def promql(expression):
    return (expression.replace("{}", "{" + RUN + "}").replace("{*}", "{" + DAEMON + "}")
            .replace("[]", "[$__rate_interval]"))


def overrides(colors, series):
    """Of each series its colour, then its other properties."""
    made = []
    for name in dict.fromkeys([*colors, *series]):
        properties = []
        if name in colors:
            properties.append({"id": "color", "value": {"mode": "fixed", "fixedColor": colors[name]}})
        properties += [{"id": key, "value": value} for key, value in series.get(name, {}).items()]
        made.append({"matcher": {"id": "byName", "options": name}, "properties": properties})
    return made


def panel_json(given, x, y, height):
    more = dict(given["more"])
    kind, custom, drawn = KINDS[given["kind"]]
    thresholds = more.pop("thresholds", None)
    defaults = {"unit": given["unit"], "color": {"mode": "thresholds" if thresholds else "palette-classic"}}
    if thresholds:
        steps = [{"color": color, "value": start} for color, start in thresholds]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    if custom:
        defaults["custom"] = custom | more.pop("custom", {})
    changed = overrides(more.pop("colors", {}), more.pop("series", {}))
    return {
        "id": given["number"],
        "type": kind,
        "title": given["title"],
        "description": given["description"],
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": given["width"], "h": height},
        "fieldConfig": {"defaults": defaults | more, "overrides": changed},
        "options": drawn,
        "targets": [
            {"datasource": SOURCE, "expr": promql(expression), "legendFormat": legend, "refId": "ABCDEFGH"[i],
             "editorMode": "code", **({"instant": True, "range": False} if kind == "stat" else {"range": True})}
            for i, (expression, legend) in enumerate(given["queries"])
        ],
    }


def panels_json(rows):
    made, y = [], 0
    for height, panels in rows:
        x = 0
        for given in panels:
            made.append(panel_json(given, x, y, height))
            x += given["width"]
        if x > WIDTH:
            sys.exit(f"the row at {y} is {x} wide, a dashboard has {WIDTH} columns")
        y += height
    return made


def variable(name, label, query, several):
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": several,
        "includeAll": several,
        **({"allValue": ".+"} if several else {}),
        "current": {},
        "hide": 0,
    }


def run_dashboard():
    return {
        "uid": "gnomon-run",
        "title": "Gnomon / Run",
        "description": "One pretraining run: FP8 loss with its BF16 shadow, the gap with its tolerance, precision, "
                       "decisions, verification and throughput.",
        "tags": ["gnomon"],
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "5s",
        "timezone": "browser",
        "time": {"from": "now-30m", "to": "now"},
        "timepicker": {},
        "links": [],
        "annotations": {"list": [
            {"name": "Annotations & Alerts", "type": "dashboard", "builtIn": 1,
             "datasource": {"type": "grafana", "uid": "-- Grafana --"}, "enable": True, "hide": True,
             "iconColor": "rgba(0, 211, 255, 1)"},
            {"name": "Decisions", "datasource": SOURCE, "enable": True, "iconColor": "orange",
             "expr": promql("sum by (run, kind) (increase(gnomon_run_decisions_total{}[])) > 0"), "step": "5s",
             "titleFormat": "{{kind}}", "textFormat": "{{run}}", "tagKeys": "kind"},
        ]},
        "templating": {"list": [
            {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1,
             "hide": 0, "multi": False, "includeAll": False, "current": {}},
            variable("job", "Job", "label_values(gnomon_build_info, job)", True),
            variable("instance", "Instance", 'label_values(gnomon_build_info{job=~"$job"}, instance)', True),
            variable("run", "Run", "label_values(gnomon_run_step{" + DAEMON + "}, run)", False),
        ]},
        "panels": panels_json(RUN_ROWS),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    for name, dashboard in {"run.json": run_dashboard()}.items():
        text = json.dumps(dashboard, indent=2) + "\n"
        if not check:
            (FOLDER / name).write_text(text)
        elif (FOLDER / name).read_text() != text:
            sys.exit(f"dashboards/{name} is not what build.py writes: run it, and check both in")


if __name__ == "__main__":
    main()
