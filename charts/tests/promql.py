"""What the checks need to know of PromQL, and which metrics there are.

Not a parser: Prometheus parses every expression in check_live.py. This only takes the
selectors out of an expression, so that a misspelt metric, label or outcome is found
without a running server. A misspelt name is valid PromQL and an empty panel.
"""

import re

# The metrics of docs/monitoring.md: name -> labels. A set of values is all there is, None is
# open (nodes, routes, versions). Histograms expose _bucket, _sum and _count.
OUTCOMES_ACQUIRE = {"granted", "held", "timeout", "no_quorum", "cancelled", "rejected"}
PRIMITIVES = {"lock", "multilock", "semaphore", "election"}
OPERATIONS = {
    "acquire", "extend", "heal", "release", "read", "survey", "issue", "list", "publish", "status", "mark",
}
OUTCOMES_NODE = {
    "done", "refused", "timeout", "connection", "down", "quarantined", "node_refused", "overloaded",
    "unmarked", "clock_ahead", "clock_stepped", "undone", "redis_error", "nonsense",
}
STATES = {"voting", "quarantined", "down", "refused"}

COUNTERS = {
    "quorate_acquisitions_total": {"primitive": PRIMITIVES, "outcome": OUTCOMES_ACQUIRE},
    "quorate_extensions_total": {
        "primitive": PRIMITIVES,
        "outcome": {"extended", "lost", "no_quorum"},
    },
    "quorate_releases_total": {
        "primitive": PRIMITIVES,
        "outcome": {"released", "not_held", "no_quorum"},
    },
    "quorate_fencing_raises_total": {},
    "quorate_split_votes_total": {},
    "quorate_undos_total": {"outcome": {"done", "expired", "abandoned"}},
    "quorate_leases_expired_total": {"primitive": PRIMITIVES},
    "quorate_forced_releases_total": {"primitive": PRIMITIVES},
    "quorate_reload_failures_total": {"what": {"keys", "certificates"}},
    "quorate_node_requests_total": {"node": None, "op": OPERATIONS, "outcome": OUTCOMES_NODE},
    "quorate_http_requests_total": {"method": None, "route": None, "status": None},
    "quorate_http_refused_total": {
        "reason": {"connections", "in_flight", "header_timeout", "body_timeout", "header_bytes", "malformed"},
    },
}
HISTOGRAMS = {
    "quorate_acquire_duration_seconds": {"primitive": PRIMITIVES},
    "quorate_wait_duration_seconds": {"primitive": PRIMITIVES},
    "quorate_hold_duration_seconds": {"primitive": PRIMITIVES},
    "quorate_node_request_duration_seconds": {"node": None, "op": OPERATIONS},
    "quorate_http_request_duration_seconds": {"method": None, "route": None},
}
GAUGES = {
    "quorate_leases": {"primitive": PRIMITIVES},
    "quorate_tls_certificate_expiry_timestamp_seconds": {},
    "quorate_waiters": {},
    "quorate_streams": {},
    "quorate_longest_wait_seconds": {},
    "quorate_node_state": {"node": None, "state": STATES},
    "quorate_pool_connections": {"node": None, "state": {"calls", "hints"}},
    "quorate_quorum_available": {},
    "quorate_membership_epoch": {},
    "quorate_member_list_mismatch": {},
    "quorate_http_connections": {},
    "quorate_http_in_flight": {},
    "quorate_build_info": {"version": None},
}

# Labels that a scrape adds.
TARGET_LABELS = {"job", "instance", "namespace"}

SELECTOR = re.compile(r"\b(quorate_[a-z0-9_]+)\s*(?:\{([^}]*)\})?")
MATCHER = re.compile(r'\s*([a-zA-Z_]\w*)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
GROUPING = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")


def series():
    """Every series name with its labels."""
    names = {**COUNTERS, **GAUGES}
    for name, labels in HISTOGRAMS.items():
        names[name + "_bucket"] = {**labels, "le": None}
        names[name + "_sum"] = labels
        names[name + "_count"] = labels
    return names


def families():
    """The names as the contract spells them."""
    return {**COUNTERS, **HISTOGRAMS, **GAUGES}


def selectors(expr):
    """(series name, [(label, operator, value)]) of every selector in an expression."""
    found = []
    for name, body in SELECTOR.findall(expr):
        matchers, rest = [], body or ""
        while rest.strip():
            match = MATCHER.match(rest)
            if not match:
                raise ValueError(f"cannot read the matchers {{{body}}} of {name}")
            matchers.append(match.groups())
            rest = rest[match.end() :]
        found.append((name, matchers))
    return found


def problems(expr):
    """What is wrong with the names in an expression, as sentences."""
    known, wrong, labels_here = series(), [], set(TARGET_LABELS)
    try:
        used = selectors(expr)
    except ValueError as error:
        return [str(error)]
    if not used:
        wrong.append("it uses no metric of Quorate")
    for name, matchers in used:
        if name not in known:
            wrong.append(f"there is no metric {name}")
            continue
        labels_here |= set(known[name])
        for label, operator, value in matchers:
            if label in TARGET_LABELS:
                continue
            if label not in known[name]:
                wrong.append(f"{name} has no label {label}")
            elif known[name][label] is not None and operator in ("=", "!="):
                if value not in known[name][label]:
                    wrong.append(f"{name}: {label} is never {value!r}")
    for group in GROUPING.findall(expr):
        for label in filter(None, (part.strip() for part in group.split(","))):
            if label not in labels_here:
                wrong.append(f"it groups by {label}, which none of its metrics has")
    return wrong


def without_filters(expr):
    """An alert's expression such that it answers while all is well.

    A healthy server makes alerts return nothing, which is also what a misspelt one returns.
    So comparisons are made to answer 0 or 1 (`bool`), absent(x) becomes count(x), and
    conditions on an HTTP status that hopefully never occurs are dropped.
    """
    parts = re.split(r"(\{[^}]*\})", expr)
    for i, part in enumerate(parts):
        if part.startswith("{"):
            parts[i] = re.sub(r'\s*status\s*=~?\s*"5[^"]*"\s*,?|\s*status\s*=~?\s*"4[^"]*"\s*,?', "", part)
        else:
            part = part.replace("absent(", "count(")
            parts[i] = re.sub(r"(==|!=|>=|<=|>|<)(?!\s*bool)", r"\1 bool", part)
    return "".join(parts)
