#!/usr/bin/env python3
"""Looks at the dashboard and the alert rules without running anything.

    check_dashboard.py [--names-from FILE] [--runbooks docs/runbooks.md]

Every panel asks something, every metric, label and outcome it asks for exists, panels do
not overlap, and Grafana's own object model reads the file without losing a field. Every
alert has a story in rules_test.yaml and a heading in docs/runbooks.md.
"""

import argparse
import enum
import json
import pathlib
import re
import sys
import typing

import yaml

import promql

HERE = pathlib.Path(__file__).resolve().parent
CHART = HERE.parent / "quorate"


def panels_of(dashboard):
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", [])


def check_panels(dashboard, complain):
    ids, cells, asked = set(), {}, 0
    for panel in panels_of(dashboard):
        title = panel.get("title") or f"panel {panel.get('id')}"
        if panel["id"] in ids:
            complain(f"{title}: id {panel['id']} is used twice")
        ids.add(panel["id"])
        grid = panel["gridPos"]
        if grid["x"] + grid["w"] > 24:
            complain(f"{title}: sticks out on the right")
        for x in range(grid["x"], grid["x"] + grid["w"]):
            for y in range(grid["y"], grid["y"] + grid["h"]):
                if (x, y) in cells:
                    complain(f"{title}: lies over {cells[x, y]}")
                    break
                cells[x, y] = title
        if panel["type"] == "row":
            continue
        targets = panel.get("targets") or []
        if not targets:
            complain(f"{title}: asks nothing")
        if not (panel.get("fieldConfig", {}).get("defaults", {}).get("unit") or panel["type"] in ("state-timeline", "heatmap")):
            complain(f"{title}: has no unit")
        for target in targets:
            expr = (target.get("expr") or "").strip()
            if not expr:
                complain(f"{title}: a query without expression")
                continue
            asked += 1
            for problem in promql.problems(expr):
                complain(f"{title}: {problem}")
            if target.get("datasource", {}).get("uid") != "${datasource}":
                complain(f"{title}: does not follow the data source chosen above")
            # A fixed window is empty when it is shorter than two scrapes.
            if re.search(r"\[\d", expr):
                complain(f"{title}: use $__rate_interval, not a fixed window")
    return asked


def check_variables(dashboard, complain):
    """Variables in use are defined, and the defined ones are in use."""
    defined = {v["name"] for v in dashboard["templating"]["list"]}
    text = json.dumps([dashboard["panels"], dashboard["templating"]])
    used = set(re.findall(r"\$\{?([a-zA-Z]\w*)\}?", text))
    for name in sorted(used - defined):
        if not name.startswith("__"):
            complain(f"variable ${name} is not defined")
    for name in sorted(defined - used):
        complain(f"variable ${name} is defined and not used")
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            for problem in promql.problems(variable["query"]["query"]):
                complain(f"variable ${variable['name']}: {problem}")


def differences(path, ours, theirs, out):
    """Fields of ours that theirs dropped or changed. Fields they add are defaults."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in ours:
            if key not in theirs:
                out.append(f"{path}.{key} is no field that Grafana knows")
            else:
                differences(f"{path}.{key}", ours[key], theirs[key], out)
    elif isinstance(ours, list) and isinstance(theirs, list):
        if len(ours) != len(theirs):
            out.append(f"{path} has {len(ours)} entries, Grafana reads {len(theirs)}")
        for i, (a, b) in enumerate(zip(ours, theirs)):
            differences(f"{path}[{i}]", a, b, out)
    elif ours != theirs:
        out.append(f"{path} is {ours!r}, Grafana reads {theirs!r}")


def enums_in(hint):
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return [hint]
    return [e for arg in typing.get_args(hint) for e in enums_in(arg)]


def wrong_enums(path, value, out, seen):
    """The SDK takes any string where it declares an enum; this does not."""
    if isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            wrong_enums(f"{path}[{i}]", item, out, seen)
    elif isinstance(value, dict):
        for key, item in value.items():
            wrong_enums(f"{path}.{key}", item, out, seen)
    elif type(value).__module__.startswith("grafana_foundation_sdk") and not isinstance(value, enum.Enum):
        if id(value) in seen:
            return
        seen.add(id(value))
        module = sys.modules[type(value).__module__]
        try:
            hints = typing.get_type_hints(type(value), vars(module))
        except NameError:
            hints = {}
        for name, item in vars(value).items():
            members = enums_in(hints.get(name))
            # Where text is allowed beside an enum there is nothing to check.
            if members and str not in typing.get_args(hints.get(name)) and isinstance(item, (str, int)):
                if not any(item == member.value for e in members for member in e):
                    out.append(f"{path}.{name} cannot be {item!r}")
            wrong_enums(f"{path}.{name}", item, out, seen)


def check_schema(dashboard, complain):
    try:
        from grafana_foundation_sdk.cog.encoder import JSONEncoder
        from grafana_foundation_sdk.cog.plugins import register_default_plugins
        from grafana_foundation_sdk.models.dashboard import Dashboard
    except ImportError as error:
        print(f"skipped: no grafana_foundation_sdk ({error}), fields not compared with Grafana's")
        return
    register_default_plugins()
    model = Dashboard.from_json(json.loads(json.dumps(dashboard)))
    found = []
    differences("", dashboard, json.loads(JSONEncoder().encode(model)), found)
    wrong_enums("", model, found, set())
    for line in found:
        complain(f"schema: {line}")
    print("  Grafana's object model reads it without losing a field")


def headings(markdown):
    """Anchors as GitHub makes them."""
    anchors = set()
    for line in markdown.splitlines():
        match = re.match(r"#{1,6}\s+(.*?)\s*#*$", line)
        if match:
            text = re.sub(r"[`*]", "", match.group(1)).lower()
            anchors.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return anchors


def check_rules(rules, tests, runbooks, complain):
    fired, silent = set(), set()
    for story in tests["tests"]:
        for case in story.get("alert_rule_test", []):
            (fired if case.get("exp_alerts") else silent).add(case["alertname"])
    anchors = headings(runbooks) if runbooks is not None else None
    names = []
    for group in rules["groups"]:
        for rule in group["rules"]:
            name = rule["alert"]
            names.append(name)
            for problem in promql.problems(rule["expr"]):
                complain(f"{name}: {problem}")
            if rule.get("labels", {}).get("severity") not in ("critical", "warning", "info"):
                complain(f"{name}: no severity")
            for text in ("summary", "description", "runbook_url"):
                if not rule.get("annotations", {}).get(text):
                    complain(f"{name}: no {text}")
            page, _, anchor = rule.get("annotations", {}).get("runbook_url", "").partition("#")
            if page != "docs/runbooks.md":
                complain(f"{name}: its runbook is not in docs/runbooks.md")
            elif anchors is not None and anchor not in anchors:
                complain(f"{name}: docs/runbooks.md has no heading for #{anchor}")
            if name not in fired:
                complain(f"{name}: rules_test.yaml never makes it fire")
            if name not in silent and f"{name}" not in QUIET_ELSEWHERE:
                complain(f"{name}: rules_test.yaml never expects it to keep quiet")
    for name in sorted((fired | silent) - set(names)):
        complain(f"rules_test.yaml tests {name}, which does not exist")
    if len(set(names)) != len(names):
        complain("two alerts share a name")
    return names


# Alerts whose quiet case stands within the firing one: promtool compares the whole list of
# alerts, so a second, healthy series beside the sick one shows that it does not fire.
QUIET_ELSEWHERE = {"QuorateNodeSlow"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--names-from", type=pathlib.Path, metavar="FILE", action="append", default=[],
                        help="source or document in which every metric name must occur")
    parser.add_argument("--runbooks", type=pathlib.Path, default=HERE.parents[1] / "docs" / "runbooks.md")
    args = parser.parse_args()

    complaints = []
    complain = complaints.append
    dashboard = json.loads((CHART / "dashboards" / "quorate.json").read_text())
    rules = yaml.safe_load((CHART / "rules" / "quorate.yaml").read_text())
    tests = yaml.safe_load((HERE / "rules_test.yaml").read_text())

    asked = check_panels(dashboard, complain)
    check_variables(dashboard, complain)
    check_schema(dashboard, complain)
    runbooks = args.runbooks.read_text() if args.runbooks.exists() else None
    if runbooks is None:
        complain(f"{args.runbooks} does not exist: no runbooks")
    names = check_rules(rules, tests, runbooks, complain)

    # A metric that nobody shows is a question nobody can answer at night.
    shown = {name for panel in panels_of(dashboard) for t in panel.get("targets", [])
             for name, _ in promql.selectors(t["expr"])}
    for family in promql.families():
        if not any(name in shown for name in (family, family + "_bucket", family + "_sum", family + "_count")):
            complain(f"no panel shows {family}")
    if args.names_from:
        text = "\n".join(path.read_text() for path in args.names_from)
        for family in promql.families():
            if family not in text and family.removeprefix("quorate_") not in text:
                complain(f"{', '.join(map(str, args.names_from))} does not name {family}")

    for line in complaints:
        print(f"  {line}", file=sys.stderr)
    boxes = sum(panel["type"] != "row" for panel in panels_of(dashboard))
    print(f"dashboard: {boxes} panels, {asked} queries; {len(names)} alerts; "
          f"{len(promql.families())} metrics; {len(complaints)} complaints")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
