#!/usr/bin/env python3
"""compose.yaml and the Dockerfile, without a container engine.

The compose file is loaded by the specification's own library (compose-go, through the go
command), its Redis command line is run by a real redis-server, and files that it mounts exist.
Whether the image builds and runs is container.sh's matter.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMPOSE_GO = "github.com/compose-spec/compose-go/v2/cmd@v2.16.2"

complaints = []


def check(condition, text):
    if not condition:
        complaints.append(text)


def load_with_compose_go():
    """The model that Docker itself would use, or None."""
    if not shutil.which("go"):
        print("skipped: no go, compose.yaml is read as plain YAML")
        return None
    try:
        done = subprocess.run(["go", "run", COMPOSE_GO, str(ROOT / "compose.yaml")],
                              capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        print("skipped: no compose-go within five minutes, compose.yaml is read as plain YAML")
        return None
    if done.returncode:
        if re.search(r"dial tcp|proxyconnect|no such host|i/o timeout|403 Forbidden|404 Not Found", done.stderr):
            print("skipped: no compose-go to be had, compose.yaml is read as plain YAML")
            return None
        check(False, f"compose-go refuses compose.yaml: {done.stderr.strip()[-600:]}")
        return None
    return yaml.safe_load(done.stdout)


def check_redis_command(command):
    if not shutil.which("redis-server"):
        print("skipped: no redis-server, the nodes' command line was not run")
        return
    with tempfile.TemporaryDirectory() as folder:
        socket = f"{folder}/s"
        server = subprocess.Popen([*command, "--port", "0", "--unixsocket", socket, "--dir", folder],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)

        def setting(name):
            return subprocess.run(["redis-cli", "-s", socket, "config", "get", name],
                                  capture_output=True, text=True, timeout=10).stdout.splitlines()

        try:
            for _ in range(100):
                if len(setting("save")) >= 1 and setting("appendonly"):
                    break
                time.sleep(0.1)
            got = {name: (setting(name) + ["", ""])[1] for name in ("appendonly", "maxmemory-policy", "save", "maxmemory")}
            check(got["appendonly"] == "yes", f"compose's nodes keep nothing: {got}")
            check(got["maxmemory-policy"] == "noeviction", f"compose's nodes evict: {got}")
            check(got["save"] == "", f"compose's nodes snapshot: {got}")
            check(got["maxmemory"].isdigit() and int(got["maxmemory"]) > 0, f"compose's nodes have no bound: {got}")
        finally:
            server.terminate()
            server.wait(20)


def check_compose():
    loaded = load_with_compose_go()
    plain = yaml.safe_load((ROOT / "compose.yaml").read_text())
    services = plain["services"]
    if loaded:
        check(set(loaded["services"]) == set(services), "compose-go sees other services")
    nodes = {name: s for name, s in services.items() if name.startswith("redis")}
    check(len(nodes) == 3, f"{len(nodes)} nodes in compose.yaml")
    urls = services["quorate"]["environment"]["QUORATE_REDIS"].split(",")
    hosts = [re.match(r"redis://([^:/]+)", url).group(1) for url in urls]
    check(sorted(hosts) == sorted(nodes), f"quorate is told of {hosts}, there are {sorted(nodes)}")
    check(services["init"]["environment"]["QUORATE_REDIS"] == ",".join(urls), "init marks other nodes than quorate uses")
    check(services["init"]["environment"]["QUORATE_MAX_TTL"] == services["quorate"]["environment"]["QUORATE_MAX_TTL"],
          "init and quorate differ in max-ttl")
    volumes = [v for s in nodes.values() for v in s["volumes"]]
    check(len(set(volumes)) == len(nodes), "nodes share a volume")
    for name in ("init", "quorate"):
        check(services[name]["read_only"] is True, f"{name} may write to its root")
    text = (ROOT / "docs" / "settings.md").read_text() if (ROOT / "docs" / "settings.md").exists() else ""
    for name, service in services.items():
        for port in service.get("ports", []):
            check(str(port).startswith("127.0.0.1:"), f"{name} listens to the world: {port}")
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("./"):
                check((ROOT / source).exists(), f"{name} mounts {source}, which does not exist")
            else:
                check(source in plain["volumes"], f"{name} uses the volume {source}, which is not declared")
        for variable in service.get("environment", {}):
            if variable.startswith("QUORATE_"):
                check(variable in text, f"{name} sets {variable}, which docs/settings.md does not know")
        check(not str(service["image"]).endswith(":latest") or "build" in service, f"{name} is of no fixed version")
    check_redis_command(next(iter(nodes.values()))["command"])

    scraped = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text())
    rules = next(v for v in services["prometheus"]["volumes"] if "rules" in v).split(":")
    check(scraped["rule_files"][0].startswith(rules[1]), "Prometheus looks for rules where none are mounted")
    provider = yaml.safe_load((ROOT / "deploy/grafana/dashboards.yaml").read_text())["providers"][0]
    boards = next(v for v in services["grafana"]["volumes"] if "charts/quorate/dashboards" in v).split(":")
    check(provider["options"]["path"] == boards[1], "Grafana looks for dashboards where none are mounted")
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    check((ROOT / boards[0] / home.removeprefix(boards[1] + "/")).exists(), f"Grafana's home {home} does not exist")
    return len(services), "compose-go" if loaded else "YAML only"


def check_dockerfile():
    text = (ROOT / "Dockerfile").read_text()
    final = text.rsplit("\nFROM ", 1)[1]
    user = re.search(r"^USER (\d+):(\d+)$", final, re.M)
    check(user and user.group(1) == "10001", "the image does not run as 10001")
    check(re.search(r"^HEALTHCHECK[\s\S]*?CMD \[.*\"healthcheck\", \"--live\"\]$", final, re.M), "the image has no health check")
    check('ENTRYPOINT ["' in final and 'CMD ["' in final, "the image starts through a shell")
    check("--mount=type=cache" in text and "--locked" in text, "the build caches nothing or is not locked")
    check("COPY --from=binary" in final and "RUN " not in final, "the last stage does more than to copy")
    for variable in re.findall(r"\b(QUORATE_[A-Z_]+)=", final):
        check(variable in (ROOT / "docs" / "settings.md").read_text(), f"the image sets {variable}, which nobody knows")
    ignored = (ROOT / ".dockerignore").read_text().split()
    check("*" in ignored and "!src" in ignored and "!Cargo.lock" in ignored, ".dockerignore lets everything through")


def main():
    count, how = check_compose()
    check_dockerfile()
    for line in complaints:
        print(f"  {line}", file=sys.stderr)
    print(f"container files: {count} services ({how}), Dockerfile; {len(complaints)} complaints")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
