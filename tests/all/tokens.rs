//! Fencing tokens: exact integers that never go back, whatever the clocks and the nodes do.

use std::collections::HashSet;

use serde_json::json;

use crate::support::{Api, Cluster, Server, eventually, token, unique};

/// Takes and releases once; the token.
async fn take(api: &Api, name: &str) -> u64 {
    let lease = api.acquire(name, json!({"wait_ms": 20_000})).await.ok();
    assert_eq!(api.release(name, &lease).await.ok(), json!({"released": true}));
    token(&lease)
}

/// A server whose clock is off, where that can be had.
async fn with_clock(cluster: &Cluster, offset: &str) -> Option<Server> {
    let server = Server::start(&cluster.options().with_clock(offset)?);
    server.all_voting().await;
    Some(server)
}

#[tokio::test]
async fn tokens_rise_over_thousands_of_grants_through_two_servers_one_of_them_30_s_behind() {
    let cluster = Cluster::new(3);
    let right = cluster.server(&[]).await;
    let behind = with_clock(&cluster, "-30s").await;
    let second = match &behind {
        Some(behind) => behind.api(),
        None => cluster_second(&cluster).await,
    };
    let name = unique("rising");
    let (mut last, mut grants) = (0, 0);
    // In turns of different lengths, so that each server is behind and ahead of the other.
    for turn in 0..150 {
        let api = if turn % 2 == 0 { right.api() } else { second.clone() };
        for _ in 0..=turn % 20 {
            let next = take(&api, &name).await;
            assert!(next > last, "{next} after {last} in turn {turn}");
            assert!(next < 1 << 53);
            last = next;
            grants += 1;
        }
    }
    // Both at once: grants of one name exclude each other, so their order is known.
    let history = std::sync::Arc::new(std::sync::Mutex::new(vec![last]));
    let mut workers = tokio::task::JoinSet::new();
    for i in 0..8 {
        let api = Api::new(if i % 2 == 0 { right.api().address() } else { second.address() });
        let (name, history) = (name.clone(), std::sync::Arc::clone(&history));
        workers.spawn(async move {
            for _ in 0..100 {
                let lease = api.acquire(&name, json!({"wait_ms": 60_000})).await.ok();
                history.lock().unwrap().push(token(&lease));
                assert_eq!(api.release(&name, &lease).await.ok(), json!({"released": true}));
            }
        });
    }
    workers.join_all().await;
    let history = history.lock().unwrap().clone();
    assert!(history.is_sorted_by(|earlier, later| earlier < later), "tokens went back");
    grants += history.len() - 1;
    println!(
        "tokens: {grants} grants of one name through two servers{}, strictly increasing",
        if behind.is_some() { ", one of them 30 s behind" } else { "" }
    );
    assert!(grants > 2_000);
}

/// Stands in where no clock can be set wrong.
async fn cluster_second(cluster: &Cluster) -> Api {
    let server = Box::leak(Box::new(cluster.server(&[]).await));
    server.api()
}

#[tokio::test]
async fn a_server_ahead_of_the_others_does_not_stop_their_tokens_from_rising() {
    let cluster = Cluster::new(3);
    let right = cluster.server(&[]).await;
    let Some(ahead) = with_clock(&cluster, "+4s").await else { return };
    let name = unique("ahead");
    let mut last = 0;
    for turn in 0..40 {
        let api = if turn % 3 == 0 { ahead.api() } else { right.api() };
        let next = take(&api, &name).await;
        assert!(next > last, "{next} after {last}");
        last = next;
    }
}

#[tokio::test]
async fn a_server_far_in_the_future_is_refused_visibly_and_poisons_no_name() {
    let cluster = Cluster::new(3);
    let right = cluster.server(&[]).await;
    let name = unique("future");
    let before = take(&right.api(), &name).await;
    let Some(future) = with_clock(&cluster, "+1d").await else { return };
    future.api().acquire(&name, json!({})).await.problem(503, "quorum_unavailable");
    future
        .api()
        .post(&format!("/v1/fencing/{name}/issue"), json!({}))
        .await
        .problem(503, "quorum_unavailable");
    let seen = future.api().get("/metrics").await.text();
    let told = seen.lines().any(|line| line.contains("clock_ahead") && !line.ends_with(" 0"));
    assert!(told, "nobody can see why");
    eventually("it is not ready", || async { future.api().get("/readyz").await.status == 503 }).await;
    let not_ready = future.api().get("/readyz").await.problem(503, "quorum_unavailable");
    let detail = not_ready["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("its clock is more than 5 s behind this server's"), "{detail}");
    let after = take(&right.api(), &name).await;
    assert!(after > before);
    assert!(after - before < 3_600_000_000, "the name lives in the future: {before} {after}");
}

#[tokio::test]
async fn tokens_rise_when_nodes_lose_their_data() {
    let mut cluster = Cluster::with(3, &Default::default(), &["--max-ttl", "1s"]);
    let server = cluster.server(&["--max-ttl", "1s"]).await;
    let api = server.api();
    let name = unique("amnesia");
    let mut last = take(&api, &name).await;
    for round in 0..4 {
        match round {
            0 => cluster.nodes[0].command::<()>(&["FLUSHALL"]),
            1 => cluster.nodes[1].restart(),
            // A total loss: nobody knows any token any more.
            2 => cluster.nodes.iter().for_each(|node| node.command::<()>(&["FLUSHALL"])),
            _ => cluster.nodes.iter_mut().for_each(|node| node.restart()),
        }
        eventually("a quorum votes", async || {
            let answer = api.acquire(&name, json!({"ttl_ms": 1_000})).await;
            if answer.status != 200 {
                return false;
            }
            let lease = answer.json();
            assert!(token(&lease) > last, "round {round}: {} after {last}", token(&lease));
            last = token(&lease);
            api.release(&name, &lease).await;
            true
        })
        .await;
        server.all_voting().await;
    }
}

#[tokio::test]
async fn a_token_is_exact_up_to_the_greatest_there_is() {
    let cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    let name = unique("greatest");
    // Finds out the key of the name, then lets the nodes know a very late token of it.
    let lease = api.acquire(&name, json!({})).await.ok();
    let key = cluster.leases(&name).remove(0);
    api.release(&name, &lease).await.ok();
    let greatest = (1_u64 << 53) - 1;
    for node in &cluster.nodes {
        node.command::<()>(&["SET", &key, &format!("{:026}{}", 0, greatest - 4)]);
    }
    let mut seen = Vec::new();
    let lease = api.acquire(&name, json!({})).await;
    // Bare digits, not 9.007199254740988e15.
    assert!(lease.text().contains(&format!("\"fencing_token\":{}", greatest - 3)), "{}", lease.text());
    let lease = lease.ok();
    seen.push(token(&lease));
    assert_eq!(token(&api.lock(&name).await), greatest - 3);
    assert_eq!(token(&api.extend(&name, &lease).await.ok()), greatest - 3);
    assert_eq!(api.release(&name, &lease).await.ok(), json!({"released": true}));
    for _ in 0..3 {
        seen.push(token(&api.post(&format!("/v1/fencing/{name}/issue"), json!({})).await.ok()));
    }
    assert_eq!(seen, [greatest - 3, greatest - 2, greatest - 1, greatest]);
    let fence = api.get(&format!("/v1/fencing/{name}")).await;
    assert!(fence.text().contains(&format!("\"highest_token\":{greatest}")), "{}", fence.text());
    let check = json!({"fencing_token": greatest});
    assert_eq!(api.post(&format!("/v1/fencing/{name}/check"), check).await.ok()["status"], "current");
    // There is nothing beyond; whatever is answered, no such token is.
    for answer in
        [api.acquire(&name, json!({})).await, api.post(&format!("/v1/fencing/{name}/issue"), json!({})).await]
    {
        assert_ne!(answer.status, 200, "a token beyond 2^53 − 1: {}", answer.text());
        assert_ne!(answer.code(), "internal", "{}", answer.text());
    }
    eventually("nothing is left", || async { cluster.leases(&name).is_empty() }).await;
}

#[tokio::test]
async fn tokens_of_all_kinds_are_unique_per_name() {
    let cluster = Cluster::new(3);
    let (one, two) = (cluster.server(&[]).await, cluster.server(&[]).await);
    let name = unique("issued");
    let mut issuers = tokio::task::JoinSet::new();
    for i in 0..8 {
        let api = if i % 2 == 0 { one.api() } else { two.api() };
        let name = name.clone();
        issuers.spawn(async move {
            let mut tokens = Vec::new();
            for _ in 0..30 {
                let answer = api.post(&format!("/v1/fencing/{name}/issue"), json!({})).await;
                if answer.status == 200 {
                    tokens.push(token(&answer.ok()));
                } else {
                    // Many issuers at once may keep each other from a quorum for a while.
                    answer.problem(503, "quorum_unavailable");
                }
            }
            assert!(tokens.is_sorted_by(|earlier, later| earlier < later));
            tokens
        });
    }
    let tokens: Vec<u64> = issuers.join_all().await.concat();
    assert_eq!(tokens.iter().collect::<HashSet<_>>().len(), tokens.len(), "a token was issued twice");
    println!("fencing: {} of 240 tokens issued by 8 concurrent issuers at two servers", tokens.len());
    assert!(tokens.len() > 200, "issuers starve each other: {} of 240", tokens.len());
}

/// As where a server whose clock is ahead was here before: then tokens rise by one, and those that are issued
/// come as near as can be to those that are raised.
#[tokio::test]
async fn no_token_is_both_issued_and_a_leases() {
    for total in [3, 5] {
        let cluster = Cluster::new(total);
        let far = ["--clock-bound", "1m"];
        let servers = [cluster.server(&far).await, cluster.server(&far).await, cluster.server(&far).await];
        for _ in 0..10 {
            let name = unique("both");
            let lease = servers[0].api().acquire(&name, json!({})).await.ok();
            let key = cluster.leases(&name).remove(0);
            servers[0].api().release(&name, &lease).await.ok();
            for (node, i) in cluster.nodes.iter().zip(0..) {
                let ahead = token(&lease) + 30_000_000 + 3 * i;
                node.command::<()>(&["SET", &key, &format!("{ahead:042}"), "PX", "600000"]);
            }
            let mut callers = tokio::task::JoinSet::new();
            for i in 0..12 {
                let (api, name) = (servers[i % 3].api(), name.clone());
                callers.spawn(async move {
                    let mut tokens = Vec::new();
                    for _ in 0..15 {
                        if i < 6 {
                            tokens.push(take(&api, &name).await);
                            continue;
                        }
                        let answer = api.post(&format!("/v1/fencing/{name}/issue"), json!({})).await;
                        if answer.status == 200 {
                            tokens.push(token(&answer.ok()));
                        }
                    }
                    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
                    tokens
                });
            }
            let mut tokens: Vec<u64> = callers.join_all().await.concat();
            tokens.sort_unstable();
            let twice: Vec<_> = tokens.windows(2).filter(|pair| pair[0] == pair[1]).collect();
            assert!(twice.is_empty(), "{twice:?} of {total} nodes");
        }
    }
}
