//! Lease ids, passwords and API keys are shown to nobody but whom they belong to.

use serde_json::{Value, json};

use crate::support::{Cluster, RedisOptions, Server, eventually, secret, unique};

const PASSWORD: &str = "s3cret-of-the-nodes";

#[tokio::test]
async fn a_lease_id_and_the_nodes_password_appear_in_no_log_line_metric_or_get() {
    let options = RedisOptions { password: Some(PASSWORD.to_owned()), ..RedisOptions::default() };
    let mut cluster = Cluster::with(3, &options, &[]);
    let server = Server::start(&cluster.options().with(&["--log-level", "trace", "--log-requests"]));
    server.all_voting().await;
    let api = server.api();
    let name = unique("secret");
    let mut secrets: Vec<String> = Vec::new();
    let mut shown: Vec<String> = Vec::new();
    let mut keep = |lease: &Value| secrets.push(secret(lease).to_owned());

    // Everything that has a lease id, with everything that can go wrong.
    let request = json!({"owner": "me", "request_id": unique("request-id")});
    let lock = api.acquire(&name, request.clone()).await.ok();
    keep(&lock);
    keep(&api.acquire(&name, request).await.ok());
    keep(&api.extend(&name, &lock).await.ok());
    shown.push(api.acquire(&name, json!({})).await.text());
    shown.push(api.acquire(&name, json!({"wait_ms": 50})).await.text());
    let body = json!({"limit": 1});
    let semaphore = api.post(&format!("/v1/semaphores/{name}/acquire"), body.clone()).await.ok();
    keep(&semaphore);
    shown.push(api.post(&format!("/v1/semaphores/{name}/acquire"), body).await.text());
    let body = json!({"candidate": "c", "value": "v"});
    let leader = api.post(&format!("/v1/elections/{name}/campaign"), body.clone()).await.ok();
    keep(&leader);
    shown.push(api.post(&format!("/v1/elections/{name}/campaign"), body).await.text());
    let body = json!({"lease_id": secret(&leader), "value": "w"});
    keep(&api.post(&format!("/v1/elections/{name}/proclaim"), body).await.ok());
    let names = json!({"names": [format!("{name}:a"), format!("{name}:b")]});
    let multilock = api.post("/v1/multilocks/acquire", names.clone()).await.ok();
    keep(&multilock);
    shown.push(api.post("/v1/multilocks/acquire", names).await.text());
    let mut stream = api
        .stream("POST", &format!("/v1/locks/{name}:held/hold"), json!({"ttl_ms": 600}))
        .await
        .ok()
        .unwrap();
    keep(&stream.expect("acquired").await);
    keep(&stream.expect("extended").await);
    let mut observer =
        api.stream("GET", &format!("/v1/elections/{name}/observe"), Value::Null).await.ok().unwrap();
    shown.push(observer.expect("leader").await.to_string());
    shown.push(
        api.post(&format!("/v1/locks/{name}:x/extend"), json!({"lease_id": secret(&lock)})).await.text(),
    );
    shown.push(
        api.post(&format!("/v1/locks/{name}/release"), json!({"lease_id": format!("{}0", secret(&lock))}))
            .await
            .text(),
    );
    shown.push(api.post(&format!("/v1/locks/{name}/release"), json!({"lease": secret(&lock)})).await.text());
    shown.push(api.get(&format!("/v1/nothing?x={PASSWORD}")).await.text().replace(PASSWORD, ""));
    for path in ["locks", "semaphores", "elections", "fencing"] {
        shown.push(api.get(&format!("/v1/{path}/{name}")).await.text());
    }
    shown.push(api.get("/v1/locks").await.text());
    // Nodes that die, come back, forget, refuse the password.
    cluster.nodes[0].restart();
    cluster.nodes[1].command::<()>(&["FLUSHALL"]);
    cluster.nodes[2].kill();
    eventually("the deaths are seen", || async {
        let nodes = api.get("/v1/nodes").await.ok();
        nodes["nodes"].as_array().unwrap().iter().all(|node| node["state"] != "voting")
    })
    .await;
    shown.push(api.acquire(&name, json!({})).await.text());
    shown.push(api.extend(&name, &lock).await.text());
    shown.push(api.release(&name, &lock).await.text());
    shown.push(api.get("/readyz").await.text());
    let nodes = api.get("/v1/nodes").await;
    assert!(nodes.ok()["nodes"][0]["address"].as_str().is_some_and(|address| !address.is_empty()));
    shown.push(nodes.text());
    shown.push(api.get("/metrics").await.text());
    shown.push(api.get("/openapi.json").await.text());
    let log = server.log();
    assert!(log.len() > 1_000, "there is nothing to search: {log}");
    drop(stream);
    drop(server);
    shown.push(log);

    for lease_id in &secrets {
        for (i, text) in shown.iter().enumerate() {
            // The half that nobody can guess is enough to be the holder, as it is shown and as it is stored.
            let stored = quorate::domain::LeaseHandle::parse(lease_id).unwrap().id;
            let places = [&lease_id[..32], &lease_id[..24], stored.expose()].map(|part| text.find(part));
            if let Some(at) = places.into_iter().flatten().next() {
                let start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
                panic!("a lease id in text {i}: {}", text[start..].lines().next().unwrap_or_default());
            }
        }
    }
    for (i, text) in shown.iter().enumerate() {
        let line = text.lines().find(|line| line.contains(PASSWORD));
        assert_eq!(line, None, "the password in text {i}");
    }
}

#[tokio::test]
async fn a_wrong_password_is_told_without_telling_it() {
    let options = RedisOptions { password: Some(PASSWORD.to_owned()), ..RedisOptions::default() };
    let cluster = Cluster::blank(1, &options);
    let wrong = "wr0ng-passw0rd";
    let url = cluster.nodes[0].url().replace(PASSWORD, wrong);
    let output = crate::support::server::init(std::slice::from_ref(&url), &[]);
    assert!(!output.status.success());
    let told = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(told.contains(&cluster.nodes[0].port().to_string()), "which node? {told}");
    assert!(told.contains("WRONGPASS"), "why? {told}");
    assert!(!told.contains(wrong), "{told}");
    for malformed in [url.replace("127.0.0.1", "["), url.replace("redis://", "http://")] {
        let output = crate::support::server::init(&[malformed], &[]);
        assert!(!output.status.success());
        let told = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(!told.contains(wrong), "{told}");
    }
}

#[tokio::test]
async fn no_url_has_room_for_a_lease_id() {
    let api = crate::support::Shared::nodes(3).api();
    let document = api.get("/openapi.json").await.ok();
    for (path, item) in document["paths"].as_object().unwrap() {
        assert!(!path.replace("release", "").replace("/v1/leases/", "/").contains("lease"), "{path}");
        for operation in item.as_object().unwrap().values() {
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let name = parameter["name"].as_str().unwrap();
                assert!(!name.contains("lease"), "{path} has the parameter {name}");
            }
        }
    }
}
