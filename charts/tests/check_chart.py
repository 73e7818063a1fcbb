#!/usr/bin/env python3
"""Lints and renders the Helm chart with Helm's own engine, and holds the result to what it promises.

    check_chart.py [--promtool FILE]

Every ci/*-values.yaml is linted strictly, rendered as an install and as an upgrade, and each
object validated against the schemas of Kubernetes 1.31. Beyond the schemas: selectors select
what they should, references lead somewhere, no secret lies in the open, and values that cannot
work are refused. The nodes' own scripts are run against a real redis-server.
"""

import argparse
import base64
import contextlib
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse

import helm_python as helm
import kubernetes_validate
import yaml

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CHART = HERE.parent / "quorate"
KUBERNETES = "1.31"
RELEASE, NAMESPACE = "demo", "locks"

# Custom resources have no schema here. This list is all that is not validated by one; both are
# looked at below instead.
WITHOUT_SCHEMA = {("monitoring.coreos.com/v1", "ServiceMonitor"), ("monitoring.coreos.com/v1", "PrometheusRule")}

# Values that must be refused, each with a word that the message must hold.
REFUSED = [
    ("a name that does not exist", {"replicas": 3}, "replicas"),
    ("a misspelt setting", {"config": {"maxTtl": "5m"}}, "maxTtl"),
    ("no server at all", {"replicaCount": 0}, "replicaCount"),
    ("a ttl that is text", {"config": {"maxTtlSeconds": "5m"}}, "maxTtlSeconds"),
    ("an even number of nodes", {"redis": {"bundled": {"nodes": 4}}}, "nodes"),
    ("eviction by the back door", {"redis": {"bundled": {"extraConfig": "maxmemory-policy allkeys-lru"}}}, "extraConfig"),
    ("a replica by the back door", {"redis": {"bundled": {"extraConfig": "x 1\n ReplicaOf a 1"}}}, "extraConfig"),
    ("a password that redis.conf cannot quote", {"redis": {"bundled": {"auth": {"password": 'a"b'}}}}, "password"),
    ("a URL that is none", {"redis": {"urls": ["redis-1:6379"]}}, "urls"),
    ("two URLs in one", {"redis": {"urls": ["redis://a,redis://b"]}}, "urls"),
    ("a key's secret where its hash belongs", {"auth": {"keys": [{"name": "a", "sha256": "hunter2", "scopes": ["read"]}]}}, "sha256"),
    ("a scope that does not exist", {"auth": {"keys": [{"name": "a", "sha256": "0" * 64, "scopes": ["write"]}]}}, "scopes"),
    ("a key for no prefix", {"auth": {"keys": [{"name": "a", "sha256": "0" * 64, "scopes": ["read"], "prefixes": []}]}}, "prefixes"),
    ("an empty prefix, with which every name begins", {"auth": {"keys": [{"name": "a", "sha256": "0" * 64, "scopes": ["read"], "prefixes": [""]}]}}, "prefixes"),
    ("more traces than requests", {"config": {"otlpSampleRatio": 2}}, "otlpSampleRatio"),
    ("an environment that is not ours", {"config": {"extra": {"PATH": "/"}}}, "PATH"),
    ("a digest without its kind", {"image": {"digest": "0" * 64}}, "digest"),
]
# And those that only a template can see.
BUNDLED = {"redis": {"bundled": {"enabled": True}}}
REFUSED_BY_TEMPLATE = [
    ("no nodes", {}, "where the nodes are"),
    ("two sorts of nodes", {"redis": {"urls": ["redis://a"], "bundled": {"enabled": True}}}, "exactly one way"),
    ("a node twice", {"redis": {"urls": ["redis://a", "redis://b", "redis://a"]}}, "twice"),
    ("authorities for nodes without TLS", {"redis": {"urls": ["redis://a"], "caSecret": "ca"}}, "rediss://"),
    ("authorities for the bundled nodes", {"redis": {"bundled": {"enabled": True}, "caSecret": "ca"}}, "rediss://"),
    ("keys and no keys", {**BUNDLED, "auth": {"existingSecret": "a", "insecureNoAuth": True}}, "exclude each other"),
    ("half a certificate", {**BUNDLED, "tls": {"enabled": True, "certificate": "-----BEGIN CERTIFICATE-----\n"}}, "without tls.privateKey"),
    ("the other half", {**BUNDLED, "tls": {"enabled": True, "privateKey": "-----BEGIN PRIVATE KEY-----\n"}}, "without tls.certificate"),
    ("a selector's label for all", {**BUNDLED, "commonLabels": {"app.kubernetes.io/component": "x"}}, "commonLabels: app.kubernetes.io/component"),
    ("a label of objects for all", {**BUNDLED, "commonLabels": {"helm.sh/chart": "x"}}, "commonLabels: helm.sh/chart"),
    ("a selector's label for servers", {**BUNDLED, "podLabels": {"app.kubernetes.io/name": "x"}}, "podLabels: app.kubernetes.io/name"),
    ("a selector's label for nodes", {"redis": {"bundled": {"enabled": True, "podLabels": {"app.kubernetes.io/instance": "x"}}}}, "redis.bundled.podLabels: app.kubernetes.io/instance"),
    ("a label of objects for the service", {**BUNDLED, "service": {"labels": {"app.kubernetes.io/version": "x"}}}, "service.labels: app.kubernetes.io/version"),
    ("a label for all and for servers", {**BUNDLED, "commonLabels": {"team": "a"}, "podLabels": {"team": "b"}}, "podLabels: team"),
    ("client certificates of nobody", {**BUNDLED, "tls": {"enabled": True, "clientCA": True}}, "clientCACertificate"),
    ("a setting by yet another way", {**BUNDLED, "extraEnv": [{"name": "QUORATE_MAX_TTL", "value": "1m"}]}, "config.maxTtlSeconds"),
    ("a node whose port cannot be told", {"redis": {"urls": ["redis://u:p@[::1/0"]}}, "networkPolicy.redisPorts"),
    ("two disruption budgets", {**BUNDLED, "podDisruptionBudget": {"minAvailable": 1, "maxUnavailable": 1}}, "exactly one"),
    ("a scale upside down", {**BUNDLED, "autoscaling": {"enabled": True, "minReplicas": 5, "maxReplicas": 2}}, "more than"),
]
# Settings that the chart sets from values of their own, and those values: given as environment they would be
# passed over, or hold for the servers and not for the init job, the probes and the nodes.
OWN_SETTINGS = {
    "QUORATE_LISTEN": "service.port",
    "QUORATE_REDIS": "redis.urls",
    "QUORATE_REDIS_FILE": "redis.existingSecret",
    "QUORATE_REDIS_PASSWORD_FILE": "redis.passwordSecret",
    "QUORATE_REDIS_CA": "redis.caSecret",
    "QUORATE_KEY_PREFIX": "config.keyPrefix",
    "QUORATE_MAX_TTL": "config.maxTtlSeconds",
    "QUORATE_SHUTDOWN_TIMEOUT": "config.shutdownTimeoutSeconds",
    "QUORATE_API_KEYS": "auth.existingSecret",
    "QUORATE_INSECURE_NO_AUTH": "auth.insecureNoAuth",
    "QUORATE_TLS_CERT": "tls.enabled",
    "QUORATE_TLS_KEY": "tls.enabled",
    "QUORATE_TLS_CLIENT_CA": "tls.clientCA",
}
REFUSED_BY_TEMPLATE += [(name, {**BUNDLED, "config": {"extra": {name: "1"}}}, value) for name, value in OWN_SETTINGS.items()]

complaints = []
counts = {"rendered": 0, "objects": 0, "validated": 0, "refused": 0}
skipped_kinds = set()


def complain(text):
    complaints.append(text)


def check(condition, text):
    if not condition:
        complain(text)


def render(values, **how):
    with helm.Chart.load(CHART) as chart:
        return chart.render(values, name=RELEASE, namespace=NAMESPACE, **how)


class UniqueKeys(yaml.SafeLoader):
    """A key given twice: YAML takes the last, the API server refuses it."""


def unique_mapping(loader, node, deep=False):
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    twice = {key for key in keys if keys.count(key) > 1}
    if twice:
        raise yaml.YAMLError(f"keys given twice: {', '.join(sorted(twice))}")
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


UniqueKeys.add_constructor("tag:yaml.org,2002:map", unique_mapping)


def objects(rendered):
    for template, text in sorted(rendered.items()):
        if template.endswith("NOTES.txt"):
            continue
        for document in yaml.load_all(text, Loader=UniqueKeys):
            if document:
                yield template, document


def pods(documents):
    """(owner, labels, spec, template's annotations) of everything that becomes a pod."""
    for document in documents:
        if document["kind"] in ("Deployment", "StatefulSet", "Job"):
            template = document["spec"]["template"]
            yield document, template["metadata"]["labels"], template["spec"]
        elif document["kind"] == "Pod":
            yield document, document["metadata"]["labels"], document["spec"]


def matches(selector, labels):
    return bool(selector) and all(labels.get(k) == v for k, v in selector.items())


def names(documents, kind):
    return {d["metadata"]["name"]: d for d in documents if d["kind"] == kind}


def check_selectors(where, documents):
    owners = [(f"{d['kind']}/{d['metadata']['name']}", labels) for d, labels, _ in pods(documents)]

    def selected(selector):
        return {owner for owner, labels in owners if matches(selector, labels)}

    full = next(d["metadata"]["name"] for d in documents if d["kind"] == "Deployment")
    server, redis = {f"Deployment/{full}"}, {f"StatefulSet/{full}-redis"}
    for d in documents:
        name = f"{where}: {d['kind']}/{d['metadata']['name']}"
        of_redis = d["metadata"]["name"].endswith("-redis")
        own = redis if of_redis else server
        if d["kind"] == "Service":
            check(selected(d["spec"]["selector"]) == own, f"{name} selects {selected(d['spec']['selector'])}")
        if d["kind"] == "PodDisruptionBudget":
            check(selected(d["spec"]["selector"]["matchLabels"]) == own, f"{name} selects the wrong pods")
        if d["kind"] in ("Deployment", "StatefulSet"):
            selector = d["spec"]["selector"]["matchLabels"]
            check(matches(selector, d["spec"]["template"]["metadata"]["labels"]), f"{name} does not select itself")
            check(len(selected(selector)) == 1, f"{name} selects others' pods too")
            spec = d["spec"]["template"]["spec"]
            for constraint in spec.get("topologySpreadConstraints", []):
                check(selected(constraint["labelSelector"]["matchLabels"]) == own, f"{name} spreads over others' pods")
        if d["kind"] == "NetworkPolicy":
            suffix = "init" if d["metadata"]["name"].endswith("-init") else None
            wanted = {f"Job/{full}-init"} if suffix else own
            got = selected(d["spec"]["podSelector"]["matchLabels"])
            # The job is there in the first revision only.
            check(got == wanted or (suffix and not got), f"{name} applies to {got}")
            for rule in d["spec"].get("ingress") or []:
                for peer in rule.get("from", []):
                    labels = peer.get("podSelector", {}).get("matchLabels")
                    if of_redis:
                        check(labels and selected(labels) <= server | redis | {f"Job/{full}-init"}, f"{name} lets {peer} in")
        if d["kind"] == "HorizontalPodAutoscaler":
            check(d["spec"]["scaleTargetRef"]["name"] == full, f"{name} scales something else")
            deployment = names(documents, "Deployment")[full]
            check("replicas" not in deployment["spec"], f"{where}: the Deployment fights its autoscaler")
        if d["kind"] == "Deployment":
            strategy = d["spec"]["strategy"]
            # No schema says so, but the API server does.
            check(strategy["type"] == "RollingUpdate" or "rollingUpdate" not in strategy, f"{name} has {strategy}")
        if d["kind"] == "ServiceMonitor":
            services = names(documents, "Service")
            hit = [s for s in services.values() if matches(d["spec"]["selector"]["matchLabels"], s["metadata"]["labels"])]
            check([s["metadata"]["name"] for s in hit] == [full], f"{name} monitors {hit}")
            ports = {p["name"] for p in hit[0]["spec"]["ports"]} if hit else set()
            check({e["port"] for e in d["spec"]["endpoints"]} <= ports, f"{name} asks for a port that is none")
        if d["kind"] == "Ingress":
            for rule in d["spec"]["rules"]:
                for path in rule["http"]["paths"]:
                    check(path["backend"]["service"]["name"] == full, f"{name} leads elsewhere")


def check_references(where, documents, values):
    """Secrets and config maps that are mounted are made here or named in the values."""
    given = json.dumps(values)
    made = {kind: names(documents, kind) for kind in ("Secret", "ConfigMap")}

    def refer(owner, kind, name, keys=()):
        if name not in made[kind]:
            check(f'"{name}"' in given, f"{where}: {owner} uses {kind} {name}, which nobody makes")
            return
        have = {**made[kind][name].get("data", {}), **made[kind][name].get("stringData", {})}
        for key in keys:
            check(key in have, f"{where}: {owner} wants {key} of {kind} {name}, which has {sorted(have)}")

    for d, _, spec in pods(documents):
        owner = f"{d['kind']}/{d['metadata']['name']}"
        mounted = {}
        for volume in spec.get("volumes", []):
            if "secret" in volume:
                keys = [item["key"] for item in volume["secret"].get("items", [])]
                refer(owner, "Secret", volume["secret"]["secretName"], keys)
                mounted[volume["name"]] = (volume["secret"]["secretName"], keys)
            if "configMap" in volume:
                refer(owner, "ConfigMap", volume["configMap"]["name"])
        volumes = {v["name"] for v in spec.get("volumes", [])}
        volumes |= {t["metadata"]["name"] for t in d["spec"].get("volumeClaimTemplates", [])}
        for container in spec["containers"]:
            mounts = container.get("volumeMounts", [])
            check({m["name"] for m in mounts} == volumes, f"{where}: {owner} mounts {mounts}, has {volumes}")
            environment = {}
            for source in container.get("envFrom", []):
                refer(owner, "ConfigMap", source["configMapRef"]["name"])
                environment |= made["ConfigMap"][source["configMapRef"]["name"]]["data"]
            for variable in container.get("env", []):
                check(variable["name"] not in environment, f"{where}: {owner} sets {variable['name']} twice")
                reference = variable.get("valueFrom", {}).get("secretKeyRef")
                if reference:
                    refer(owner, "Secret", reference["name"], [reference["key"]])
                environment[variable["name"]] = variable.get("value", "")
            # Every path in the environment lies in a mounted secret, under a key that it has.
            for name, value in environment.items():
                if not str(value).startswith("/etc/quorate/"):
                    continue
                mount = next((m for m in mounts if value.startswith(m["mountPath"] + "/")), None)
                check(mount is not None, f"{where}: {owner} {name}={value}, and nothing is mounted there")
                if mount:
                    refer(owner, "Secret", mounted[mount["name"]][0], [value.rsplit("/", 1)[1]])
            known_settings(f"{where}: {owner}", environment)


def check_extra(where, documents, values):
    """Settings by the name of their variable arrive as they were written, and none that the chart sets itself."""
    (full, deployment), = names(documents, "Deployment").items()
    for variable in deployment["spec"]["template"]["spec"]["containers"][0]["env"]:
        name = variable["name"]
        check(not name.startswith("QUORATE_") or name in OWN_SETTINGS, f"{where}: {name} in config.extra would be passed over")
    data = names(documents, "ConfigMap")[full]["data"]
    for name, value in values.get("config", {}).get("extra", {}).items():
        text = json.dumps(value) if isinstance(value, (bool, int, float)) else value
        check(data.get(name) == text, f"{where}: {name} is {data.get(name)!r}, not {text!r}")


def check_test(where, documents):
    """The test asks for no lease that its servers would refuse."""
    (deployment,) = names(documents, "Deployment").values()
    environment = {e["name"]: e.get("value") for e in deployment["spec"]["template"]["spec"]["containers"][0]["env"]}
    for pod in names(documents, "Pod").values():
        args = pod["spec"]["containers"][0]["args"]
        if "--ttl" in args:
            ttl, longest = args[args.index("--ttl") + 1], environment["QUORATE_MAX_TTL"]
            check(0 < int(ttl[:-1]) <= int(longest[:-1]), f"{where}: helm test takes a lock for {ttl}, allowed are {longest}")


def check_egress(where, documents, values):
    """Servers and init job may go wherever they must."""
    policies = names(documents, "NetworkPolicy")
    (full,) = names(documents, "Deployment")
    policy = values.get("networkPolicy", {})
    nodes = names(documents, "Secret").get(f"{full}-nodes", {}).get("stringData", {}).get("urls", "").split()
    # Of nodes in a secret of one's own nothing is known.
    wanted = set(policy.get("redisPorts", [])) or {urllib.parse.urlsplit(url).port or 6379 for url in nodes} or {6379}
    for name in (full, f"{full}-init"):
        if name in policies:
            rules = policies[name]["spec"]["egress"]
            ports = [port["port"] for port in rules[1]["ports"]]
            check(sorted(ports) == sorted(wanted), f"{where}: {name} lets out to {ports}, nodes are at {wanted}")
            check(rules[2:] == policy.get("extraEgress", []), f"{where}: {name} has not all of extraEgress")


def known_settings(where, environment):
    """Environment that no setting listens to: silently the default."""
    page = ROOT / "docs" / "settings.md"
    text = page.read_text() if page.exists() else ""
    documented = set(re.findall(r"QUORATE_[A-Z0-9_]+", text))
    for name in environment:
        if name.startswith("QUORATE_"):
            check(name in documented, f"{where} sets {name}, which docs/settings.md does not know")


def check_hardening(where, documents):
    for d, _, spec in pods(documents):
        owner = f"{where}: {d['kind']}/{d['metadata']['name']}"
        check(spec.get("automountServiceAccountToken") is False, f"{owner} carries a token of the cluster")
        check(spec.get("enableServiceLinks") is False, f"{owner} would get QUORATE_PORT and the like from Kubernetes")
        check(spec["securityContext"].get("runAsNonRoot") is True, f"{owner} may run as root")
        check(spec["securityContext"].get("seccompProfile", {}).get("type") == "RuntimeDefault", f"{owner} without seccomp")
        for c in spec["containers"]:
            context = c.get("securityContext", {})
            check(context.get("readOnlyRootFilesystem") is True, f"{owner} may write to its root")
            check(context.get("allowPrivilegeEscalation") is False, f"{owner} may escalate")
            check(context.get("capabilities", {}).get("drop") == ["ALL"], f"{owner} keeps capabilities")
            check("memory" in c.get("resources", {}).get("limits", {}), f"{owner} has no memory limit")
            check("requests" in c.get("resources", {}), f"{owner} requests nothing")
            for word in c.get("args", []) + c.get("command", []):
                check("redis://" not in word and "rediss://" not in word, f"{owner} shows a URL in ps")


def check_secrets(where, documents):
    """What is secret lies in Secrets and nowhere else; hashes match what they are hashes of."""
    secrets = names(documents, "Secret")
    hidden = set()
    for secret in secrets.values():
        data = dict(secret.get("stringData", {}))
        data |= {k: base64.b64decode(v).decode() for k, v in secret.get("data", {}).items()}
        for key in ("password", "key", "tls.key"):
            if key in data:
                hidden.add(data[key])
        for url in data.get("urls", "").split():
            match = re.match(r"rediss?://[^:]*:([^@]+)@", url)
            if match:
                hidden.add(match.group(1))
    rest = json.dumps([d for d in documents if d["kind"] != "Secret"])
    for word in hidden:
        check(len(word) >= 6 and json.dumps(word)[1:-1] not in rest, f"{where}: a secret lies in the open")
    initial = next((s for n, s in secrets.items() if n.endswith("-initial-key")), None)
    if initial:
        import hashlib

        keys = next(s for n, s in secrets.items() if n.endswith("-keys"))["stringData"]["keys.toml"]
        digest = hashlib.sha256(initial["stringData"]["key"].encode()).hexdigest()
        check(digest in keys, f"{where}: the first key's hash is not in the key file")
    for name, secret in secrets.items():
        if "keys.toml" in secret.get("stringData", {}):
            try:
                import tomllib
            except ImportError:
                print("skipped: no tomllib (Python before 3.11), key files not parsed")
                continue
            keys = tomllib.loads(secret["stringData"]["keys.toml"])["key"]
            check(keys and all({"name", "sha256", "scopes"} <= set(k) for k in keys), f"{where}: {name} is no key file")


def check_bundled(where, documents, values):
    sets = names(documents, "StatefulSet")
    if not values.get("redis", {}).get("bundled", {}).get("enabled"):
        check(not sets, f"{where}: a StatefulSet that nobody asked for")
        return
    (name, redis), = sets.items()
    conf = names(documents, "ConfigMap")[name]["data"]["redis.conf"]
    for line in ("appendonly yes", "maxmemory-policy noeviction", 'save ""'):
        check(line in conf, f"{where}: redis.conf lacks {line}")
    check(not re.search(r"^\s*(replicaof|slaveof)", conf, re.M), f"{where}: the nodes are not independent")
    service = names(documents, "Service")[redis["spec"]["serviceName"]]
    check(service["spec"]["clusterIP"] == "None", f"{where}: the nodes' service is not headless")
    check(service["spec"]["publishNotReadyAddresses"] is True, f"{where}: nodes that abstain would vanish from DNS")
    check(redis["spec"]["podManagementPolicy"] == "Parallel", f"{where}: blank nodes would wait for each other")
    secret = names(documents, "Secret").get(name.replace("-redis", "-nodes"))
    if secret:
        urls = secret["stringData"]["urls"].split()
        check(len(urls) == len(set(urls)) == redis["spec"]["replicas"], f"{where}: {len(urls)} URLs for {redis['spec']['replicas']} nodes")
        for i, url in enumerate(urls):
            check(f"@{name}-{i}.{name}.{NAMESPACE}.svc." in url or f"//{name}-{i}.{name}.{NAMESPACE}.svc." in url,
                  f"{where}: {url} is not pod {i}")
    affinity = redis["spec"]["template"]["spec"].get("affinity", {}).get("podAntiAffinity", {})
    mode = values["redis"]["bundled"].get("antiAffinity", "required")
    check({"required": "requiredDuringSchedulingIgnoredDuringExecution", "preferred": "preferredDuringSchedulingIgnoredDuringExecution"}.get(mode)
          in (affinity or {None: 0}), f"{where}: anti-affinity is not {mode}")
    # An upgrade of the chart alone must not restart the nodes.
    text = json.dumps(redis["spec"]["template"]["metadata"])
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
    check(f"quorate-{version}" not in text, f"{where}: the nodes' pods carry the chart's version")


def check_init(where, values):
    first = [d for _, d in objects(render(values, is_install=True))]
    later = [d for _, d in objects(render(values, is_upgrade=True, is_install=False, revision=2))]
    jobs = names(first, "Job")
    wanted = values.get("init", {}).get("enabled", True)
    check(bool(jobs) == wanted, f"{where}: init jobs on install: {sorted(jobs)}")
    check(not names(later, "Job"), f"{where}: an upgrade would run `quorate init` again")
    for job in jobs.values():
        hook = job["metadata"].get("annotations", {}).get("helm.sh/hook")
        check(hook == ("post-install" if values.get("init", {}).get("asHook", True) else None), f"{where}: init is hook {hook}")
        deployment = next(d for d in first if d["kind"] == "Deployment")
        env = {e["name"]: e.get("value") for e in deployment["spec"]["template"]["spec"]["containers"][0]["env"]}
        for e in job["spec"]["template"]["spec"]["containers"][0]["env"]:
            check(env.get(e["name"]) == e["value"], f"{where}: init and server differ in {e['name']}")


def check_monitoring(where, documents, values, promtool):
    rules = names(documents, "PrometheusRule")
    source = yaml.safe_load((CHART / "rules" / "quorate.yaml").read_text())
    for rule in rules.values():
        groups = rule["spec"]["groups"]
        base = values.get("prometheusRule", {}).get("runbookBase", "docs/runbooks.md")
        extra = values.get("prometheusRule", {}).get("alertLabels", {})
        expected = json.loads(json.dumps(source["groups"]).replace("docs/runbooks.md#", base + "#"))
        for group in expected:
            for alert in group["rules"]:
                alert["labels"] = {**extra, **alert["labels"]}
        check(groups == expected, f"{where}: the PrometheusRule is not rules/quorate.yaml")
        if promtool:
            with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
                yaml.safe_dump({"groups": groups}, file)
                file.flush()
                done = subprocess.run([promtool, "check", "rules", file.name], capture_output=True, text=True)
                check(done.returncode == 0, f"{where}: promtool: {done.stderr or done.stdout}")
    for config in names(documents, "ConfigMap").values():
        if "quorate.json" in config["data"]:
            check(json.loads(config["data"]["quorate.json"]) == json.loads((CHART / "dashboards" / "quorate.json").read_text()),
                  f"{where}: the dashboard changed on its way")


def validate(where, template, document):
    counts["objects"] += 1
    identity = (document["apiVersion"], document["kind"])
    if identity in WITHOUT_SCHEMA:
        skipped_kinds.add(document["kind"])
        return
    try:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
        counts["validated"] += 1
    except Exception as error:  # its errors share no base class
        complain(f"{where}: {template}: {document['kind']}/{document['metadata']['name']}: {error}")


def check_values_file(path, promtool):
    where = path.stem.removesuffix("-values")
    values = yaml.safe_load(path.read_text()) or {}
    report = helm.lint(CHART, values, strict=True, namespace=NAMESPACE)
    for error in report["errors"]:
        complain(f"{where}: lint: {error}")
    for message in report["messages"]:
        if message["severity"] >= 2:
            complain(f"{where}: lint: {message['path']}: {message['error']}")
    rendered = render(values, is_install=True)
    counts["rendered"] += 1
    documents = []
    for template, document in objects(rendered):
        validate(where, template, document)
        check(document["metadata"].get("namespace") == NAMESPACE, f"{where}: {template} is in no namespace")
        documents.append(document)
    keys = [(d["kind"], d["metadata"]["name"]) for d in documents]
    check(len(keys) == len(set(keys)), f"{where}: two objects of one name")
    for document in documents:
        for name in [document["metadata"]["name"]]:
            check(len(name) <= 63, f"{where}: the name {name} is too long")
    check_selectors(where, documents)
    check_references(where, documents, values)
    check_extra(where, documents, values)
    check_test(where, documents)
    check_egress(where, documents, values)
    check_hardening(where, documents)
    check_secrets(where, documents)
    check_bundled(where, documents, values)
    check_init(where, values)
    check_monitoring(where, documents, values, promtool)
    notes = next(text for template, text in rendered.items() if template.endswith("NOTES.txt"))
    check("<nil>" not in notes and "%!" not in notes, f"{where}: the notes have a hole")
    text = "".join(rendered.values())
    check("<nil>" not in text and "%!" not in text, f"{where}: a value printed as nil or with a wrong verb")
    check(not re.search(r": [\"']?\d\.?\d*e\+\d+", text), f"{where}: a number in scientific notation")
    return len(documents)


def check_ports():
    """Of a node's URL, as the server reads it."""
    for url, port in [("redis://a", 6379), ("rediss://a:6380", 6380), ("redis://a:6380/0", 6380), ("redis://:x:7@a/0", 6379),
                      ("redis://u:p%40:9@a.b.svc:6381/1?protocol=resp3", 6381), ("rediss://[fd00::6379]/0", 6379),
                      ("rediss://u:p@[fd00::1]:6382", 6382), ("redis://10.0.0.1:06383", 6383), ("redis://a:", 6379)]:
        documents = [d for _, d in objects(render({"redis": {"urls": [url]}}))]
        ports = names(documents, "NetworkPolicy")[f"{RELEASE}-quorate"]["spec"]["egress"][1]["ports"]
        check([p["port"] for p in ports] == [port], f"network policy: {url} is at {port}, not at {ports}")


def check_refusals():
    for what, values, word in REFUSED:
        with helm.Chart.load(CHART) as chart:
            try:
                chart.validate_schema(chart.merge_values(values))
            except helm.HelmError as error:
                check(word in str(error), f"{what}: refused without naming {word}: {error}")
                counts["refused"] += 1
            else:
                complain(f"{what}: the schema lets {values} pass")
    for what, values, word in REFUSED_BY_TEMPLATE:
        try:
            render(values)
        except helm.HelmError as error:
            check(word in str(error), f"{what}: refused without saying {word!r}: {error}")
            counts["refused"] += 1
        else:
            complain(f"{what}: {values} renders")


def check_schema_is_complete():
    """Each default has its place in the schema, and the schema knows nothing else."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def walk(path, value, node):
        node = schema["definitions"][node["$ref"].rsplit("/", 1)[1]] if "$ref" in node else node
        properties = node.get("properties")
        if not isinstance(value, dict) or properties is None:
            return
        check(node.get("additionalProperties") is False, f"schema: {path or 'the top'} takes any name")
        for key in set(value) - set(properties):
            complain(f"schema: {path}{key} is missing")
        for key in set(properties) - set(value):
            # `global` belongs to parents of the chart; probes and resources have optional parts.
            if key != "global" and not path.endswith(("Probe.", "resources.")):
                complain(f"schema: {path}{key} is in no values.yaml")
        for key in set(properties) & set(value):
            walk(f"{path}{key}.", value[key], properties[key])

    walk("", values, schema)
    readme = (CHART / "README.md").read_text()
    for key in values:
        check(f"`{key}" in readme, f"README: {key} is not mentioned")


@contextlib.contextmanager
def silence():
    """Helm's engine is a library of its own and does not know of sys.stderr."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def check_node_scripts():
    """redis.conf and the scripts of a bundled node, on a real redis-server."""
    for tool in ("redis-server", "redis-cli"):
        if not shutil.which(tool):
            print(f"skipped: no {tool}, the nodes' scripts were not run")
            return
    # A password of somebody's own secret may hold anything.
    password = 'correct"horse\\staple'
    values = {"redis": {"bundled": {"enabled": True, "auth": {"existingSecret": "mine"}}}, "config": {"keyPrefix": "pre"}}
    documents = [d for _, d in objects(render(values))]
    data = names(documents, "ConfigMap")[f"{RELEASE}-quorate-redis"]["data"]
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        base = pathlib.Path(folder)
        places = {"/etc/redis-conf": base / "conf", "/etc/redis-auth": base / "auth", "/data": base / "data", "/tmp/": base / "tmp/"}
        for place in places.values():
            place.mkdir(exist_ok=True)
        (base / "auth" / "password").write_text(password + "\n")
        for name, text in data.items():
            # Only where things lie differs from the pod.
            text = re.sub(r"/etc/redis-conf|/etc/redis-auth|(?<=dir )/data|/tmp/(?=auth)",
                          lambda m: str(places[m.group(0)]) + ("/" if m.group(0).endswith("/") else ""), text)
            text = text.replace("port 6379", f"port {port}").replace("redis-cli ", f"redis-cli -p {port} ")
            (base / "conf" / name).write_text(text)

        def script(name):
            return subprocess.run(["sh", base / "conf" / name], capture_output=True, text=True, timeout=20)

        def cli(*words):
            return subprocess.run(["redis-cli", "-p", str(port), "--no-auth-warning", "-a", password, *words],
                                  capture_output=True, text=True, timeout=20).stdout.strip()

        def start():
            log = open(base / "log", "ab")
            server = subprocess.Popen(["sh", base / "conf" / "start.sh"], stdout=log, stderr=log)
            for _ in range(100):
                if script("live.sh").stdout.strip() == "PONG":
                    return server
                time.sleep(0.1)
            complain(f"node scripts: redis did not start: {(base / 'log').read_text()[-800:]}")
            return server

        def mark(role="v", nonce="n", process=None):
            run_id = process or re.search(r"run_id:(\w+)", cli("info", "server")).group(1)
            cli("set", "pre:member", f"2 member 4 id {run_id} n")
            others = "x,n,1,v,redis://a:6379 {} y,n,1,v,redis://b:6379"
            cli("set", "pre:membership", "4 id d most 0 0 settled " + others.format(f"{run_id},{nonce},4,{role},redis://c:6379") + "|||")

        server = start()
        try:
            check(script("ready.sh").returncode != 0, "node scripts: a blank node counts as ready")
            mark()
            check(script("ready.sh").returncode == 0, f"node scripts: a marked node is not ready: {script('ready.sh')}")
            check(cli("config", "get", "maxmemory-policy").split()[-1] == "noeviction", "node scripts: the node evicts")
            check(cli("config", "get", "appendonly").split()[-1] == "yes", "node scripts: no append-only file")
            arguments = pathlib.Path(f"/proc/{server.pid}/cmdline")
            if arguments.exists():
                check(password not in arguments.read_text(), "node scripts: ps shows the password")
            server.terminate()
            server.wait(20)
            server = start()
            check(cli("get", "pre:member").startswith("2 "), "node scripts: the marker did not survive a restart")
            check(script("ready.sh").returncode != 0, "node scripts: a restarted node counts as ready at once")
            # The wait itself: the same script, told how long the node is up. It is that of the longest class of leases
            # that the node remembers.
            ready = base / "conf" / "ready.sh"
            text = ready.read_text()
            for classes, wait in [([], 318), ([300000], 318), ([600000, 30000], 621), ([60000], 318), ([599999], 621),
                                  ([86400000], 87279), ([86400001], 318)]:
                cli("del", "pre:classes")
                for class_ms in classes:
                    cli("zadd", "pre:classes", "9999999999999", str(class_ms))
                for up, is_ready in [(wait - 1, False), (wait, True)]:
                    ready.write_text(re.sub(r"^( *)up=.*$", rf"\1up={up}", text, flags=re.M))
                    check((script("ready.sh").returncode == 0) == is_ready,
                          f"node scripts: classes {classes}, up for {up} s: ready is not {is_ready}: {script('ready.sh')}")
            ready.write_text(text)
            cli("del", "pre:member")
            check(script("ready.sh").returncode != 0, "node scripts: a node that lost its marker is ready at once")
            for what, how in [("joins", {"role": "j"}), ("is closed", {"role": "c"}), ("is another incarnation", {"nonce": "m"}),
                              ("is of another process", {"process": "gone"})]:
                mark(**how)
                check(script("ready.sh").returncode != 0, f"node scripts: a node that {what} is ready at once")
            mark()
            check(script("ready.sh").returncode == 0, "node scripts: a node marked anew is not ready")
            # What it runs before it ends, with a program that tells how it was called.
            program = base / "quorate"
            program.write_text('#!/bin/sh\ncat "$QUORATE_REDIS_PASSWORD_FILE"; echo "$@"\n')
            program.chmod(0o755)
            stop = base / "conf" / "stop.sh"
            stop.write_text(stop.read_text().replace("/quorate/quorate", str(program)).replace("$(hostname)", "demo-quorate-redis-1"))
            node = "redis://demo-quorate-redis-{}.demo-quorate-redis.locks.svc.cluster.local:6379".format
            told = script("stop.sh").stdout.split("\n")
            wanted = ["members", "close", node(1), "--key-prefix", "pre", *(word for i in range(3) for word in ("--redis", node(i)))]
            check(told[:2] == [password, " ".join(wanted)], f"node scripts: it is closed by {told}")
            print("  bundled nodes: config and probes hold on a real redis-server")
        finally:
            server.terminate()
            server.wait(20)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--promtool", default=shutil.which("promtool"))
    args = parser.parse_args()
    helm.disable_logging()
    if not args.promtool:
        print("skipped: no promtool, the rendered rules were not parsed")

    files = sorted((CHART / "ci").glob("*-values.yaml"))
    check(len(files) >= 4, "there are hardly any values files in ci/")
    for path in files:
        try:
            found = check_values_file(path, args.promtool)
            print(f"  {path.name}: {found} objects")
        except (helm.HelmError, yaml.YAMLError) as error:
            complain(f"{path.name}: {error}")
    with silence():
        # Without values the templates refuse, which lint only notes, on its own standard error.
        defaults = helm.lint(CHART, {}, strict=True)
    check(not defaults["errors"], f"the defaults do not lint: {defaults['errors']}")
    check_refusals()
    check_ports()
    check_schema_is_complete()
    check_node_scripts()

    for line in complaints:
        print(f"  {line}", file=sys.stderr)
    if skipped_kinds:
        print(f"  not validated, since Kubernetes has no schema of them: {', '.join(sorted(skipped_kinds))}")
    print(f"chart: Helm {helm.helm_sdk_version()}, {counts['rendered']} values files, {counts['objects']} objects, "
          f"{counts['validated']} validated against Kubernetes {KUBERNETES}, {counts['refused']} bad values refused; "
          f"{len(complaints)} complaints")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
