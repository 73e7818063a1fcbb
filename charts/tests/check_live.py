#!/usr/bin/env python3
"""Asks a real Prometheus every question of the dashboard and of the alert rules.

    check_live.py http://127.0.0.1:8080            (or --metrics-url …/metrics)
        [--prometheus FILE] [--promtool FILE] [--seconds 25]

Starts a Prometheus that scrapes the given server every second, with the alert rules loaded,
and lets it look for a while. Someone else has to make load meanwhile: locks taken, waited for,
extended and released. Then

  - `promtool check metrics` finds nothing wrong with what the server exposes,
  - every variable of the dashboard has a value,
  - every query of every panel answers with at least one series that is a number,
  - every rule evaluates without error, and answers once its conditions are taken out
    (an alert on a healthy server answers nothing, and so does one with a typing error).

A rate of something rare is 0 here and that is an answer; no series at all is none.
"""

import argparse
import json
import math
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

import yaml

import promql

HERE = pathlib.Path(__file__).resolve().parent
CHART = HERE.parent / "quorate"
# Shorter than any rule's window, longer than two scrapes.
RATE_INTERVAL = "10s"
# The server that is watched has no certificate.
NO_DATA = "quorate_tls_certificate_"

complaints = []


def complain(text):
    complaints.append(text)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Prometheus:
    def __init__(self, binary, metrics_url, folder):
        target = urllib.parse.urlsplit(metrics_url)
        job = {
            "job_name": "quorate",
            "scheme": target.scheme,
            "metrics_path": target.path or "/metrics",
            # As Kubernetes would: the dashboard filters by it.
            "static_configs": [{"targets": [target.netloc], "labels": {"namespace": "test"}}],
        }
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(CHART / "rules" / "quorate.yaml")],
            "scrape_configs": [job],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self.base = f"http://127.0.0.1:{free_port()}"
        self.log = folder / "log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [binary, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                 f"--web.listen-address={self.base.removeprefix('http://')}", "--log.level=warn"],
                stdout=log, stderr=log)
        for _ in range(150):
            if self.process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(self.base + "/-/ready", timeout=2):
                    return
            except OSError:
                time.sleep(0.2)
        raise SystemExit(f"prometheus did not start:\n{self.log.read_text()[-2000:]}")

    def get(self, path, **parameters):
        url = f"{self.base}/api/v1/{path}?{urllib.parse.urlencode(parameters, doseq=True)}"
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(json.load(error).get("error", str(error))) from None

    def numbers(self, expr):
        """Values of all series that an expression has now, NaN left out."""
        result = self.get("query", query=expr)
        found = result["result"] if result["resultType"] == "vector" else [{"value": result["result"]}]
        return [v for v in (float(s["value"][1]) for s in found) if not math.isnan(v)]

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()


def substitute(expr, variables):
    """What Grafana does to variables."""
    expr = expr.replace("$__rate_interval", RATE_INTERVAL).replace("$__interval", "1s").replace("$__range", "1m")
    for name, value in variables.items():
        expr = re.sub(r"\$\{?" + name + r"\b(:\w+)?\}?", value, expr)
    if "$" in re.sub(r'"(?:[^"\\]|\\.)*"', "", expr):
        raise ValueError("a variable is left over")
    return expr


def panels_of(dashboard):
    for panel in dashboard["panels"]:
        if panel["type"] != "row":
            yield panel
        yield from panel.get("panels", [])


def check_variables(prometheus, dashboard):
    """label_values(series, label) of each variable finds something."""
    variables = {}
    for variable in dashboard["templating"]["list"]:
        if variable["type"] != "query":
            continue
        match = re.fullmatch(r"label_values\((.*),\s*(\w+)\)", variable["query"]["query"])
        if not match:
            complain(f"variable ${variable['name']}: not understood")
            continue
        selector, label = match.groups()
        values = prometheus.get(f"label/{label}/values", **{"match[]": substitute(selector, variables)})
        if not values:
            complain(f"variable ${variable['name']} has no value")
        # What "All" stands for.
        variables[variable["name"]] = variable.get("allValue") or "|".join(map(re.escape, values))
    return variables


def check_panels(prometheus, dashboard, variables):
    asked = 0
    for panel in panels_of(dashboard):
        for target in panel.get("targets", []):
            asked += 1
            where = f"panel {panel['title']!r} {target['refId']}"
            try:
                expr = substitute(target["expr"], variables)
                if not prometheus.numbers(expr) and NO_DATA not in expr:
                    complain(f"{where} has no data: {expr}")
            except ValueError as error:
                complain(f"{where}: {error}")
    return asked


def check_rules(prometheus):
    source = yaml.safe_load((CHART / "rules" / "quorate.yaml").read_text())
    wanted = {rule["alert"]: rule for group in source["groups"] for rule in group["rules"]}
    loaded = {rule["name"]: rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]}
    for name in sorted(set(wanted) - set(loaded)):
        complain(f"alert {name} was not loaded")
    for name, rule in sorted(loaded.items()):
        if rule["health"] != "ok":
            complain(f"alert {name}: {rule['health']}: {rule.get('lastError', '')}")
    for name, rule in wanted.items():
        expr = promql.without_filters(rule["expr"])
        try:
            if not prometheus.numbers(expr) and NO_DATA not in expr:
                complain(f"alert {name} would be blind, this has no data: {expr}")
        except ValueError as error:
            complain(f"alert {name}: {error}: {expr}")
    firing = sorted(name for name, rule in loaded.items() if rule["state"] == "firing")
    return len(wanted), firing


def check_exposition(metrics_url, promtool):
    with urllib.request.urlopen(metrics_url, timeout=10) as answer:
        text = answer.read()
    exposed = set(re.findall(r"^# TYPE (\w+)", text.decode(), re.M))
    # A server without TLS has no certificate.
    for name in sorted(set(promql.families()) - exposed - {"quorate_tls_certificate_expiry_timestamp_seconds"}):
        complain(f"{metrics_url} does not expose {name}")
    # The other way round it is only news: a metric without a panel may be meant so.
    extra = sorted(name for name in exposed - set(promql.families()) if name.startswith("quorate_"))
    if extra:
        print(f"  exposed and on no panel: {', '.join(extra)}")
    if not promtool:
        print("skipped: no promtool, the exposition was not checked")
        return
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True)
    if done.returncode:
        complain(f"promtool check metrics: {(done.stderr or done.stdout).decode().strip()}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base_url", nargs="?", help="of the server, e.g. http://127.0.0.1:8080")
    parser.add_argument("--metrics-url", default=os.environ.get("QUORATE_METRICS_URL"))
    parser.add_argument("--prometheus", default=shutil.which("prometheus"))
    parser.add_argument("--promtool", default=shutil.which("promtool"))
    parser.add_argument("--seconds", type=float, default=25, help="how long to look before asking")
    args = parser.parse_args()
    url = args.base_url.rstrip("/") + "/metrics" if args.base_url else args.metrics_url
    if not url:
        parser.error("which server? Give its URL or --metrics-url")
    if not args.prometheus:
        print("skipped: no prometheus, neither panels nor rules were asked")
        return 0

    dashboard = json.loads((CHART / "dashboards" / "quorate.json").read_text())
    with tempfile.TemporaryDirectory(prefix="quorate-live-") as folder:
        prometheus = Prometheus(args.prometheus, url, pathlib.Path(folder))
        try:
            time.sleep(args.seconds)
            scrapes = prometheus.numbers('up{job="quorate"}')
            if scrapes != [1.0]:
                targets = prometheus.get("targets")["activeTargets"]
                complain(f"{url} is not scraped: {targets and targets[0]['lastError']}")
            check_exposition(url, args.promtool)
            variables = check_variables(prometheus, dashboard)
            asked = check_panels(prometheus, dashboard, variables)
            rules, firing = check_rules(prometheus)
        finally:
            prometheus.stop()

    for line in complaints:
        print(f"  {line}", file=sys.stderr)
    print(f"live: {asked} panel queries and {rules} rules asked of a real Prometheus; "
          f"firing: {', '.join(firing) or 'none'}; {len(complaints)} complaints")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
