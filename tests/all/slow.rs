//! Clients that are slow, half-open or talk nonsense, in crowds: the others do not notice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::json;
use tokio::task::JoinSet;

use crate::support::{Api, Cluster, allow_open_files, eventually, median, unique};

/// How long taking and releasing a lock takes, in the middle of many.
async fn speed(api: &Api, rounds: usize) -> Duration {
    let name = unique("speed");
    let mut all = Vec::new();
    for _ in 0..rounds {
        let asked = Instant::now();
        let lease = api.acquire(&name, json!({})).await.ok();
        api.release(&name, &lease).await.ok();
        all.push(asked.elapsed());
    }
    median(all)
}

/// A request that is wrong in one of many ways.
fn malformed(random: &mut SmallRng) -> Vec<u8> {
    let body = |text: &str| {
        let length = text.len();
        format!(
            "POST /v1/locks/bad/acquire HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{text}"
        )
        .into_bytes()
    };
    match random.random_range(0..10) {
        0 => (0..random.random_range(1..300)).map(|_| random.random()).collect(),
        1 => b"GET\r\n\r\n".to_vec(),
        2 => b"GET /livez HTTP/7.0\r\n\r\n".to_vec(),
        3 => b"POST /v1/locks/bad/acquire HTTP/1.1\r\nhost: a\r\ncontent-length: nonsense\r\n\r\n".to_vec(),
        4 => body(r#"{"ttl_ms": "#),
        5 => body(r#"{"ttl_ms": "x", "metadata": {"a": 1}}"#),
        6 => body(&"[".repeat(10_000)),
        7 => format!("GET /v1/locks/%zz{} HTTP/1.1\r\nhost: a\r\n\r\n", random.random::<u64>()).into_bytes(),
        8 => format!("DELETE /{} HTTP/1.1\r\nhost: a\r\n\r\n", "x".repeat(5_000)).into_bytes(),
        _ => body(r#"{"owner": "\ud800"}"#),
    }
}

#[tokio::test]
async fn a_thousand_slow_connections_and_ten_thousand_malformed_requests_slow_nobody_down() {
    allow_open_files(6_000);
    let cluster = Cluster::new(3);
    let server = cluster.server(&[]).await;
    let api = server.api();
    speed(&api, 100).await;
    let before = speed(&api, 300).await;

    // Half-open ones: nothing, half a head, a head without its body, an answer never read.
    let over = Arc::new(AtomicBool::new(false));
    let mut crowd = JoinSet::new();
    for i in 0..1_000 {
        let (api, over) = (api.clone(), Arc::clone(&over));
        crowd.spawn(async move {
            let mut connection = api.connect().await.expect("it accepts");
            let text = "POST /v1/locks/slow/acquire HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n\
                        content-length: 100\r\n\r\n{\"owner\": \"";
            let sent = match i % 4 {
                0 => 0,
                1 => text.len() / 2,
                2 => text.len(),
                _ => {
                    let request = api.request("GET", "/metrics", &[], b"");
                    let _ = connection.send(&request).await;
                    text.len()
                }
            };
            let _ = connection.send(&text.as_bytes()[..if i % 4 == 3 { 0 } else { sent }]).await;
            // A byte now and then.
            let mut at = sent;
            while !over.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(500)).await;
                if i % 2 == 1 && at < text.len() {
                    if connection.send(&text.as_bytes()[at..=at]).await.is_err() {
                        break;
                    }
                    at += 1;
                }
            }
        });
    }
    eventually("all are connected", || async {
        api.metric("quorate_http_connections").await >= 1_000.0 || crowd.is_empty()
    })
    .await;
    let with_slow = speed(&api, 300).await;

    let left = Arc::new(AtomicUsize::new(10_000));
    let answered = Arc::new(AtomicUsize::new(0));
    let mut shouters = JoinSet::new();
    for seed in 0..20 {
        let (api, left, answered) = (api.clone(), Arc::clone(&left), Arc::clone(&answered));
        shouters.spawn(async move {
            let mut random = SmallRng::seed_from_u64(seed);
            while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
            {
                let Ok(mut connection) = api.connect().await else { panic!("it does not accept") };
                if connection.send(&malformed(&mut random)).await.is_err() {
                    continue;
                }
                // Random bytes may look like the beginning of something longer: nobody waits for that.
                let answer = tokio::time::timeout(Duration::from_millis(200), connection.answer()).await;
                if let Ok(Ok(answer)) = answer {
                    assert!((400..500).contains(&answer.status), "{}: {}", answer.status, answer.text());
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    let during = speed(&api, 100).await;
    shouters.join_all().await;
    let after = speed(&api, 300).await;
    println!(
        "acquire + release: {before:?} alone, {with_slow:?} beside 1000 slow or half-open connections, {during:?} \
         while 10000 malformed requests came too ({} answered with 4xx), {after:?} afterwards",
        answered.load(Ordering::Relaxed)
    );
    assert!(answered.load(Ordering::Relaxed) > 8_000);
    for (what, speed) in [("beside slow connections", with_slow), ("afterwards", after)] {
        assert!(speed < before * 4 + Duration::from_millis(10), "{what}: {before:?} became {speed:?}");
    }
    assert!(!server.log().contains("panic"));
    over.store(true, Ordering::Relaxed);
    crowd.join_all().await;
    assert_eq!(cluster.leases("slow"), Vec::<String>::new());
}

#[tokio::test]
async fn connections_that_do_not_get_on_are_closed() {
    let cluster = Cluster::new(1);
    let arguments = ["--header-timeout", "500ms", "--body-timeout", "500ms", "--idle-timeout", "1s"];
    let server = cluster.server(&arguments).await;
    let api = server.api();
    let beginnings = [
        "",
        "POST /v1/locks/slow/acquire HTTP/1.1\r\nhost: a\r\n",
        "POST /v1/locks/slow/acquire HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{",
        "GET /livez HTTP/1.1\r\nhost: a\r\n\r\n",
    ];
    for beginning in beginnings {
        let mut connection = api.connect().await.unwrap();
        connection.send(beginning.as_bytes()).await.unwrap();
        let closed = async {
            // Answers may come first: that of the probe, or why it is closed.
            while connection.answer().await.is_ok() {}
        };
        tokio::time::timeout(Duration::from_secs(30), closed)
            .await
            .unwrap_or_else(|_| panic!("stays open: {beginning:?}"));
    }
    api.acquire("slow", json!({})).await.ok();
}
