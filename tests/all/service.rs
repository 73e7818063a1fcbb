//! `/livez`, `/readyz`, `/v1/nodes`, `/metrics`, `/openapi.json`, `/docs`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::support::{
    Api, Cluster, Redis, RedisOptions, Server, ServerOptions, Shared, eventually, number, secret, unique,
};

#[tokio::test]
async fn a_server_over_voting_nodes_is_live_and_ready() {
    for total in [1, 3, 5] {
        let shared = Shared::nodes(total);
        let api = shared.api();
        assert_eq!(api.get("/livez").await.status, 200);
        api.get("/readyz").await.ok();
        let nodes = api.get("/v1/nodes").await.ok();
        assert_eq!(number(&nodes, "quorum"), total as u64 / 2 + 1);
        assert_eq!(nodes["available"], true);
        let listed = nodes["nodes"].as_array().unwrap();
        assert_eq!(listed.len(), total);
        let ids: BTreeSet<&str> = listed.iter().map(|node| node["id"].as_str().unwrap()).collect();
        assert_eq!(ids.len(), total);
        for (node, redis) in listed.iter().zip(&shared.cluster.nodes) {
            assert_eq!(node["state"], "voting");
            assert!(node["address"].as_str().unwrap().contains(&format!("127.0.0.1:{}", redis.port())));
            assert_eq!(node["redis_version"], redis.info("server")["redis_version"]);
            assert!(node["latency_ms"].as_f64().is_some_and(|latency| latency > 0.0));
            assert!(node.get("reason").is_none() && node.get("voting_in_ms").is_none(), "{node}");
        }
    }
}

#[tokio::test]
async fn a_server_without_a_quorum_is_live_but_not_ready() {
    let mut cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    cluster.nodes[0].kill();
    eventually("its death is seen", || async {
        api.get("/v1/nodes").await.ok()["nodes"][0]["state"] == "down"
    })
    .await;
    let nodes = api.get("/v1/nodes").await.ok();
    assert!(nodes["nodes"][0]["reason"].as_str().is_some_and(|why| why.contains("failed")), "{nodes}");
    let latency = nodes["nodes"][1]["latency_ms"].to_string();
    assert!(
        latency.split('.').nth(1).is_none_or(|digits| digits.len() <= 3),
        "to the microsecond: {latency}"
    );
    api.get("/readyz").await.ok();
    cluster.nodes[1].kill();
    eventually("it is not ready", || async { api.get("/readyz").await.status == 503 }).await;
    eventually("it is logged", || async { server.log().contains("the quorum of nodes is lost") }).await;
    let problem = api.get("/readyz").await.problem(503, "quorum_unavailable");
    assert_eq!(number(&problem["nodes"], "total"), 3);
    assert_eq!(number(&problem["nodes"], "quorum"), 2);
    assert_eq!(number(&problem["nodes"], "failed"), 2);
    assert_eq!(api.get("/livez").await.status, 200);
    assert_eq!(api.metric("quorate_quorum_available").await, 0.0);
    assert_eq!(api.metric(r#"quorate_node_state{node="n1",state="down"}"#).await, 1.0);
    assert_eq!(api.metric(r#"quorate_node_state{node="n1",state="voting"}"#).await, 0.0);
    assert_eq!(api.metric(r#"quorate_node_state{node="n3",state="voting"}"#).await, 1.0);
}

#[tokio::test]
async fn a_server_that_starts_without_a_quorum_says_so() {
    let server = Server::start(&ServerOptions::over(["redis://127.0.0.1:1".to_owned()]));
    eventually("it is logged", || async { server.log().contains("started without a quorum") }).await;
}

/// Every series with its value.
async fn metrics(api: &Api) -> BTreeMap<String, f64> {
    let answer = api.get("/metrics").await;
    assert_eq!(answer.status, 200);
    assert!(answer.header("content-type").is_some_and(|value| value.starts_with("text/plain")));
    let text = answer.text();
    let series = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    series
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap_or_else(|_| panic!("no number: {line}")))
        })
        .collect()
}

#[tokio::test]
async fn counters_with_a_fixed_set_of_labels_are_there_from_the_start() {
    let cluster = Cluster::new(1);
    let server = cluster.server(&[]).await;
    let metrics = metrics(&server.api()).await;
    let mut expected = Vec::new();
    for primitive in ["lock", "multilock", "semaphore", "election"] {
        for outcome in ["granted", "held", "timeout", "no_quorum", "cancelled", "rejected"] {
            expected.push(format!(
                r#"quorate_acquisitions_total{{primitive="{primitive}",outcome="{outcome}"}}"#
            ));
        }
        for outcome in ["extended", "lost", "no_quorum"] {
            expected
                .push(format!(r#"quorate_extensions_total{{primitive="{primitive}",outcome="{outcome}"}}"#));
        }
        for outcome in ["released", "not_held", "no_quorum"] {
            expected
                .push(format!(r#"quorate_releases_total{{primitive="{primitive}",outcome="{outcome}"}}"#));
        }
    }
    expected.extend(["quorate_fencing_raises_total", "quorate_split_votes_total"].map(str::to_owned));
    for name in &expected {
        assert_eq!(metrics.get(name), Some(&0.0), "{name}");
    }
    for gauge in ["quorate_waiters", "quorate_streams", "quorate_longest_wait_seconds"] {
        assert_eq!(metrics.get(gauge), Some(&0.0), "{gauge}");
    }
    assert_eq!(metrics.get("quorate_quorum_available"), Some(&1.0));
    for state in ["voting", "quarantined", "down", "refused"] {
        let name = format!(r#"quorate_node_state{{node="n1",state="{state}"}}"#);
        assert_eq!(metrics.get(&name), Some(&if state == "voting" { 1.0 } else { 0.0 }), "{name}");
    }
    for prefix in [
        "quorate_undos_total{outcome=",
        r#"quorate_node_requests_total{node="n1",op="#,
        "quorate_pool_connections{node=",
        "quorate_build_info{version=",
    ] {
        assert!(metrics.keys().any(|name| name.starts_with(prefix)), "{prefix}");
    }
}

#[tokio::test]
async fn what_happens_is_counted() {
    let cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    let name = unique("counted-name");
    let lease = api.acquire(&name, json!({})).await.ok();
    api.acquire(&name, json!({})).await.problem(409, "lock_held");
    api.acquire(&name, json!({"wait_ms": 50})).await.problem(409, "lock_held");
    api.acquire(&name, json!({"ttl": 1})).await.problem(400, "invalid_request");
    api.extend(&name, &lease).await.ok();
    api.release(&name, &lease).await.ok();
    api.release(&name, &lease).await.ok();
    api.extend(&name, &lease).await.problem(409, "lease_lost");
    let waiting = tokio::spawn({
        let (api, name) = (api.clone(), name.clone());
        async move {
            api.acquire(&name, json!({})).await.ok();
            api.acquire(&name, json!({"wait_ms": 60_000})).await
        }
    });
    eventually("it waits", || async { api.metric("quorate_waiters").await == 1.0 }).await;
    waiting.abort();
    eventually("it has gone", || async { api.metric("quorate_waiters").await == 0.0 }).await;
    let hold = format!("/v1/semaphores/{name}/hold");
    drop(api.stream("POST", &hold, json!({"limit": 1})).await.unwrap());
    eventually("it is given back", || async {
        api.metric(r#"quorate_releases_total{primitive="semaphore",outcome="released"}"#).await == 1.0
    })
    .await;
    let election = format!("/v1/elections/{name}");
    let term = api.post(&format!("{election}/campaign"), json!({"candidate": "c"})).await.ok();
    let mut proclaim = json!({"lease_id": secret(&term), "value": "v"});
    api.post(&format!("{election}/proclaim"), proclaim.clone()).await.ok();
    proclaim["lease_id"] = "0".repeat(46).into();
    api.post(&format!("{election}/proclaim"), proclaim).await.problem(409, "lease_lost");
    api.post("/v1/multilocks/acquire", json!({"names": [unique("a"), unique("b")]})).await.ok();
    let all = metrics(&api).await;
    let value = |series: &str| *all.get(series).unwrap_or_else(|| panic!("no {series}"));
    for (outcome, count) in
        [("granted", 2.0), ("held", 1.0), ("timeout", 1.0), ("cancelled", 1.0), ("rejected", 1.0)]
    {
        let series = format!(r#"quorate_acquisitions_total{{primitive="lock",outcome="{outcome}"}}"#);
        assert_eq!(value(&series), count, "{series}");
    }
    for primitive in ["semaphore", "election", "multilock"] {
        assert_eq!(
            value(&format!(r#"quorate_acquisitions_total{{primitive="{primitive}",outcome="granted"}}"#)),
            1.0
        );
    }
    assert_eq!(value(r#"quorate_extensions_total{primitive="lock",outcome="extended"}"#), 1.0);
    assert_eq!(value(r#"quorate_extensions_total{primitive="lock",outcome="lost"}"#), 1.0);
    assert_eq!(value(r#"quorate_releases_total{primitive="lock",outcome="released"}"#), 1.0);
    assert_eq!(value(r#"quorate_releases_total{primitive="lock",outcome="not_held"}"#), 1.0);
    assert_eq!(value(r#"quorate_extensions_total{primitive="election",outcome="extended"}"#), 1.0);
    assert_eq!(value(r#"quorate_extensions_total{primitive="election",outcome="lost"}"#), 1.0);
    assert_eq!(value(r#"quorate_releases_total{primitive="semaphore",outcome="released"}"#), 1.0);
    assert_eq!(value(r#"quorate_hold_duration_seconds_count{primitive="semaphore"}"#), 1.0);
    for histogram in
        ["quorate_acquire_duration_seconds", "quorate_wait_duration_seconds", "quorate_hold_duration_seconds"]
    {
        assert!(value(&format!(r#"{histogram}_count{{primitive="lock"}}"#)) > 0.0, "{histogram}");
        assert!(
            all.keys().any(|series| series.starts_with(&format!("{histogram}_bucket"))),
            "{histogram} is a summary"
        );
    }
    let requests: f64 = all
        .iter()
        .filter(|(series, _)| series.starts_with("quorate_http_requests_total{"))
        .filter(|(series, _)| series.contains("/v1/locks/{name}/acquire") && series.contains("POST"))
        // However the one that left is counted.
        .filter(|(series, _)| {
            ["200", "400", "409"].iter().any(|status| series.contains(&format!("\"{status}\"")))
        })
        .map(|(_, count)| count)
        .sum();
    assert_eq!(requests, 5.0, "acquire was answered five times");
    assert!(all.keys().any(|series| series.starts_with("quorate_http_request_duration_seconds_bucket")));
    let leaks: Vec<&String> = all.keys().filter(|series| series.contains("counted-name")).collect();
    assert_eq!(leaks, Vec::<&String>::new(), "labels carry the name");
}

#[tokio::test]
async fn made_up_paths_and_names_make_no_new_series() {
    let cluster = Cluster::new(1);
    let server = cluster.server(&[]).await;
    let api = server.api();
    let one = async |i: usize| {
        api.get(&format!("/nowhere/{i}")).await.problem(404, "not_found");
        api.get(&format!("/v1/locks/name{i}")).await.ok();
        api.send(&format!("VERB{i}"), "/v1/locks", &[], b"").await.problem(405, "method_not_allowed");
    };
    one(0).await;
    metrics(&api).await;
    let before = metrics(&api).await.len();
    for i in 1..50 {
        one(i).await;
    }
    let after = metrics(&api).await.len();
    assert_eq!(after, before, "new series");
}

#[tokio::test]
async fn promtool_finds_nothing_wrong_with_the_metrics() {
    let shared = Shared::nodes(3);
    let text = shared.api().get("/metrics").await.text();
    let child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        return crate::support::skip("no promtool (apt-get install prometheus)");
    };
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && said.trim().is_empty(), "{said}");
}

#[tokio::test]
async fn the_openapi_document_describes_every_operation_of_the_contract() {
    let api = Shared::nodes(3).api();
    let document = api.get("/openapi.json").await.ok();
    assert!(document["openapi"].as_str().unwrap().starts_with("3."));
    let mut found = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            if let Some(id) = operation["operationId"].as_str() {
                assert!(found.insert((method.clone(), path.clone(), id.to_owned())), "{id}");
                assert!(operation["responses"].as_object().is_some_and(|all| !all.is_empty()), "{id}");
            }
        }
    }
    for (method, path, id) in [
        ("post", "/v1/locks/{name}/acquire", "acquireLock"),
        ("post", "/v1/locks/{name}/extend", "extendLock"),
        ("post", "/v1/locks/{name}/release", "releaseLock"),
        ("get", "/v1/locks/{name}", "getLock"),
        ("get", "/v1/locks", "listLocks"),
        ("delete", "/v1/locks/{name}", "forceReleaseLock"),
        ("post", "/v1/locks/{name}/hold", "holdLock"),
        ("post", "/v1/multilocks/acquire", "acquireMultilock"),
        ("post", "/v1/semaphores/{name}/acquire", "acquireSemaphore"),
        ("get", "/v1/semaphores/{name}", "getSemaphore"),
        ("post", "/v1/elections/{name}/campaign", "campaign"),
        ("get", "/v1/elections/{name}", "getLeader"),
        ("get", "/v1/elections/{name}/observe", "observeElection"),
        ("post", "/v1/fencing/{name}/issue", "issueToken"),
        ("post", "/v1/fencing/{name}/check", "checkToken"),
        ("get", "/v1/fencing/{name}", "getFence"),
        ("get", "/v1/members", "listMembers"),
        ("post", "/v1/members", "addMember"),
        ("delete", "/v1/members/{id}", "removeMember"),
        ("post", "/v1/members/{id}/replace", "replaceMember"),
        ("post", "/v1/members/{id}/close", "closeMember"),
        ("get", "/v1/nodes", "listNodes"),
    ] {
        assert!(found.contains(&(method.to_owned(), path.to_owned(), id.to_owned())), "{method} {path} {id}");
    }
    for (path, method) in [
        ("/v1/multilocks/extend", "post"),
        ("/v1/multilocks/release", "post"),
        ("/v1/semaphores/{name}/extend", "post"),
        ("/v1/semaphores/{name}/release", "post"),
        ("/v1/semaphores/{name}/hold", "post"),
        ("/v1/elections/{name}/extend", "post"),
        ("/v1/elections/{name}/resign", "post"),
        ("/v1/elections/{name}/proclaim", "post"),
        ("/v1/elections/{name}/hold", "post"),
        ("/livez", "get"),
        ("/readyz", "get"),
        ("/metrics", "get"),
    ] {
        assert!(document["paths"][path][method].is_object(), "{method} {path}");
    }
    let token = &document["components"]["schemas"]["Lease"]["properties"]["fencing_token"];
    assert_eq!(token["format"], "int64", "{token}");
    // The command prints the same document.
    let printed = crate::support::server::run_quorate(&["openapi"]);
    assert!(printed.status.success());
    let printed: serde_json::Value = serde_json::from_slice(&printed.stdout).unwrap();
    assert_eq!(printed, document);
}

#[tokio::test]
async fn the_docs_come_from_the_server_alone() {
    let api = Shared::nodes(3).api();
    let mut path = "/docs".to_owned();
    let page = loop {
        let answer = api.get(&path).await;
        match answer.header("location") {
            Some(location) => path = location.to_owned(),
            None => break answer,
        }
    };
    assert_eq!(page.status, 200);
    assert!(page.header("content-type").is_some_and(|value| value.starts_with("text/html")));
    let html = page.text();
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let base = match html.split_once("<base href=\"") {
        Some((_, rest)) => {
            let href = rest.split('"').next().unwrap().trim_end_matches('/');
            if href.starts_with('/') { href.to_owned() } else { format!("{folder}/{href}") }
        }
        None => folder.to_owned(),
    };
    let links = html.split(['"', '\'']).filter(|word| word.ends_with(".js") || word.ends_with(".css"));
    let mut count = 0;
    for link in links {
        assert!(!link.starts_with("http") && !link.starts_with("//"), "{link} is not ours");
        let link = link.trim_start_matches("./");
        let path = if link.starts_with('/') { link.to_owned() } else { format!("{base}/{link}") };
        assert_eq!(api.get(&path).await.status, 200, "{path}");
        count += 1;
    }
    assert!(count >= 2, "{html}");
}

#[tokio::test]
async fn the_healthcheck_command_tells_by_its_status() {
    let mut cluster = Cluster::blank(1, &RedisOptions::default());
    cluster.init(&[]);
    let server = cluster.server(&[]).await;
    let url = format!("http://{}", server.api().address());
    let check = || crate::support::server::run_quorate(&["healthcheck", "--server", &url]).status.success();
    assert!(check());
    drop(server);
    assert!(!check());
    cluster.nodes[0].kill();
}

#[tokio::test]
async fn nodes_may_be_reached_by_socket_with_user_and_in_another_database() {
    let directory = crate::support::redis::new_directory();
    let socket = directory.join("redis.sock").display().to_string();
    let arguments = ["--unixsocket", &socket].map(str::to_owned).to_vec();
    let by_socket = Redis::with(RedisOptions { arguments, ..RedisOptions::default() });
    let by_user = Redis::with(RedisOptions { password: Some("p@ss word".into()), ..RedisOptions::default() });
    by_user.command::<()>(&["ACL", "SETUSER", "locker", "on", ">s3:cret/", "~*", "&*", "+@all"]);
    let plain = Redis::with(RedisOptions::default());
    let urls = vec![
        format!("unix://{socket}?db=3"),
        format!("redis://locker:s3%3Acret%2F@127.0.0.1:{}/2", by_user.port()),
        plain.url(),
    ];
    assert!(crate::support::server::init(&urls, &[]).status.success());
    let server = Server::start(&ServerOptions::over(urls));
    server.all_voting().await;
    let name = unique("elsewhere");
    let lease = server.api().acquire(&name, json!({})).await.ok();
    eventually("each has it in its database", || async {
        let keys = |redis: &Redis, database: &str| {
            let mut connection = redis.connection();
            redis::cmd("SELECT").arg(database).exec(&mut connection).unwrap();
            redis::cmd("KEYS").arg(format!("*{name}*")).query::<Vec<String>>(&mut connection).unwrap().len()
        };
        (keys(&by_socket, "3"), keys(&by_user, "2"), keys(&plain, "0")) == (1, 1, 1)
    })
    .await;
    server.api().release(&name, &lease).await.ok();
    let nodes = server.api().get("/v1/nodes").await.text();
    assert!(nodes.contains(&socket) && !nodes.contains("s3"), "{nodes}");
    let _ = std::fs::remove_dir_all(directory);
}

#[test]
fn a_node_url_that_says_more_than_is_heeded_is_refused_without_showing_it() {
    for (url, word) in [
        ("redis://127.0.0.1:1?db=3", "redis://HOST/2"),
        ("rediss://127.0.0.1:1/3?password=s3cret", "redis://HOST/2"),
        ("redis://127.0.0.1:1/#s3cret", "%23"),
        ("rediss://127.0.0.1:1/#insecure", "always verified"),
        ("unix:///nowhere?database=3", "db, user and pass"),
        ("unix:///nowhere?db=3&password=s3cret", "db, user and pass"),
        ("redis://127.0.0.1:1/99999999999999999999", "the database is no number from 0 to"),
        ("redis://127.0.0.1:1/2147483648", "the database is no number from 0 to"),
        ("redis://127.0.0.1:1/1/2", "the database is no number from 0 to"),
        ("unix:///nowhere?db=s3cret", "the database is no number from 0 to"),
        ("unix:///nowhere?db=-1&pass=s3cret", "the database is no number from 0 to"),
        ("127.0.0.1:1", "must begin with redis://"),
        ("s3cret:1", "must begin with redis://"),
    ] {
        let output = crate::support::server::run_quorate(&["init", "--redis", url]);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(64), "{url}: {told}");
        assert!(told.contains(word) && !told.contains("s3cret"), "{url}: {told}");
    }
}

#[test]
fn a_server_without_its_scheme_is_told_what_it_lacks() {
    for server in ["127.0.0.1:8080", "localhost:8080", "ftp://localhost", "quorate"] {
        let output = crate::support::server::run_quorate(&["nodes", "--server", server]);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(64), "{server}: {told}");
        assert!(told.contains("must be an http:// or https:// URL"), "{server}: {told}");
    }
}

#[tokio::test]
async fn settings_come_from_flags_the_environment_and_a_file() {
    let cluster = Cluster::new(3);
    let directory = crate::support::redis::new_directory();
    let file = directory.join("quorate.toml");
    std::fs::write(&file, "max_ttl = \"20s\"\nmax_wait = \"1s\"\nlisten = \"127.0.0.1:1\"\n").unwrap();
    let arguments = ["serve", "--config", file.to_str().unwrap(), "--max-wait", "3s"].map(str::to_owned);
    let environment = [("QUORATE_REDIS", cluster.urls().join(",")), ("QUORATE_LISTEN", "127.0.0.1:0".into())]
        .map(|(name, value)| (name.to_owned(), value));
    let server = Server::launch(&arguments, &environment).unwrap();
    server.all_voting().await;
    let api = server.api();
    let name = unique("settings");
    api.acquire(&name, json!({"ttl_ms": 20_001})).await.problem(400, "invalid_request");
    api.acquire(&name, json!({"wait_ms": 3_001})).await.problem(400, "invalid_request");
    api.acquire(&name, json!({"ttl_ms": 20_000, "wait_ms": 3_000})).await.ok();
    // What cannot be read is told, with its place.
    for (text, word) in [("max_tll = 3\n", "max_tll"), ("max_ttl = \"soon\"\n", "soon")] {
        std::fs::write(&file, text).unwrap();
        let failed = Server::launch(&arguments, &environment);
        assert!(failed.is_err_and(|failed| failed.stderr.contains(word)), "{text}");
    }
    let _ = std::fs::remove_dir_all(directory);
}
