//! Servers that contend for the same name are served in the order in which their clients came, however far from
//! the nodes they are.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::proxy::Proxy;
use crate::support::{Api, Cluster, Server, eventually, number, secret, unique};

/// What is asked for, by its path and the body of an acquire.
#[derive(Clone)]
struct Wanted {
    path: String,
    acquire: &'static str,
    release: &'static str,
    body: Value,
}

impl Wanted {
    fn lock(name: &str) -> Self {
        let body = json!({"wait_ms": 60_000, "ttl_ms": 60_000});
        Self { path: format!("/v1/locks/{name}"), acquire: "acquire", release: "release", body }
    }

    fn permits(name: &str, limit: u32, permits: u32) -> Self {
        let body = json!({"wait_ms": 60_000, "ttl_ms": 60_000, "limit": limit, "permits": permits});
        Self { path: format!("/v1/semaphores/{name}"), acquire: "acquire", release: "release", body }
    }

    fn election(name: &str) -> Self {
        let body = json!({"wait_ms": 60_000, "ttl_ms": 60_000, "candidate": "c"});
        Self { path: format!("/v1/elections/{name}"), acquire: "campaign", release: "resign", body }
    }

    async fn acquire(&self, api: &Api) -> Value {
        api.post(&format!("{}/{}", self.path, self.acquire), self.body.clone()).await.ok()
    }

    async fn release(&self, api: &Api, lease: &Value) {
        let body = json!({"lease_id": secret(lease)});
        api.post(&format!("{}/{}", self.path, self.release), body).await.ok();
    }
}

/// A server whose messages take so much longer, each way.
async fn far(cluster: &Cluster, delay: Duration) -> (Vec<Proxy>, Server) {
    let (proxies, options) = cluster.proxies();
    proxies.iter().for_each(|proxy| proxy.delay(delay));
    let server = Server::start(&options);
    server.all_voting().await;
    (proxies, server)
}

/// Who was served, in order, and the most turns of others that each had to wait for.
#[derive(Debug, Default)]
struct Turns {
    served: Vec<usize>,
    waited: Vec<usize>,
}

/// So many clients at each server take it in turn until it has changed hands so often.
async fn take_turns(servers: &[Api], clients: usize, wanted: &Wanted, hand_overs: usize) -> Turns {
    // Else the near ones have had several turns before a far one's next acquire has arrived.
    const USES_IT_FOR: Duration = Duration::from_millis(3);
    let turns = Arc::new(Mutex::new(Turns { served: Vec::new(), waited: vec![0; servers.len()] }));
    let mut crowd = JoinSet::new();
    for client in 0..clients * servers.len() {
        let server = client % servers.len();
        let (api, wanted, turns) = (Api::new(servers[server].address()), wanted.clone(), Arc::clone(&turns));
        crowd.spawn(async move {
            loop {
                let before = turns.lock().unwrap().served.len();
                if before >= hand_overs {
                    return;
                }
                let lease = wanted.acquire(&api).await;
                {
                    let mut turns = turns.lock().unwrap();
                    let waited = turns.served.len() - before;
                    turns.waited[server] = turns.waited[server].max(waited);
                    turns.served.push(server);
                }
                tokio::time::sleep(USES_IT_FOR).await;
                wanted.release(&api, &lease).await;
            }
        });
    }
    crowd.join_all().await;
    Arc::try_unwrap(turns).unwrap().into_inner().unwrap()
}

#[tokio::test]
async fn the_server_that_is_farthest_from_the_nodes_has_its_share_of_turns() {
    const TURNS: usize = 60;
    for delay_ms in [0, 1, 5] {
        let cluster = Cluster::new(3);
        let (one, two) = (cluster.server(&[]).await, cluster.server(&[]).await);
        let (_proxies, three) = far(&cluster, Duration::from_millis(delay_ms)).await;
        let servers = [one.api(), two.api(), three.api()];
        let name = unique("far");
        for wanted in [Wanted::lock(&name), Wanted::permits(&name, 1, 1), Wanted::election(&name)] {
            let began = Instant::now();
            let turns = take_turns(&servers, 1, &wanted, TURNS).await;
            let share = turns.served[..TURNS].iter().filter(|&&server| server == 2).count();
            println!(
                "{} with the third server {delay_ms} ms farther: it had {share} of {TURNS} turns in {:?}; waits in turns {:?}",
                wanted.path,
                began.elapsed(),
                turns.waited
            );
            assert!(share >= TURNS / 3 / 2, "{share} of {TURNS} turns: {:?}", turns.served);
            assert!(turns.waited[2] <= 4 * 3, "{:?}", turns.waited);
        }
    }
}

#[tokio::test]
async fn waiters_at_two_servers_are_served_in_the_order_in_which_they_came() {
    const WAITING: usize = 24;
    let cluster = Cluster::new(3);
    let (one, two) = (cluster.server(&[]).await, cluster.server(&[]).await);
    let (wanted, served) = (Wanted::lock(&unique("order")), Arc::new(Mutex::new(Vec::new())));
    let holder = wanted.acquire(&one.api()).await;
    let waiters =
        async || one.api().metric("quorate_waiters").await + two.api().metric("quorate_waiters").await;
    let mut crowd = JoinSet::new();
    for place in 0..WAITING {
        // Several in a row at one server, too.
        let api = if place % 5 < 2 { one.api() } else { two.api() };
        let (wanted, served) = (wanted.clone(), Arc::clone(&served));
        crowd.spawn(async move {
            let lease = wanted.acquire(&api).await;
            served.lock().unwrap().push(place);
            wanted.release(&api, &lease).await;
        });
        eventually("it waits", || async { waiters().await == (place + 1) as f64 }).await;
    }
    wanted.release(&one.api(), &holder).await;
    crowd.join_all().await;
    let served = served.lock().unwrap();
    println!("served in turn: {served:?}");
    // A hand-over may come out of turn where a server is late for its moment.
    let moved = served.iter().enumerate().filter(|(turn, place)| turn.abs_diff(**place) > 2).count();
    assert!(moved <= WAITING / 4, "{served:?}");
}

#[tokio::test]
async fn ten_clients_that_are_far_have_their_share_beside_ten_that_are_near() {
    const TURNS: usize = 200;
    for delay_ms in [0, 1] {
        let cluster = Cluster::new(3);
        let one = cluster.server(&[]).await;
        let (_proxies, two) = far(&cluster, Duration::from_millis(delay_ms)).await;
        let turns = take_turns(&[one.api(), two.api()], 10, &Wanted::lock(&unique("ten")), TURNS).await;
        let share = turns.served[..TURNS].iter().filter(|&&server| server == 1).count();
        println!(
            "ten clients {delay_ms} ms farther: {share} of {TURNS} turns; waits in turns {:?}",
            turns.waited
        );
        assert!(share >= TURNS / 2 / 2, "{share} of {TURNS} turns: {:?}", turns.served);
        assert!(turns.waited[1] <= 4 * 20, "{:?}", turns.waited);
    }
}

/// Takes `wanted` again and again at this server with so many clients, until `over`; counts the grants.
fn stream(
    crowd: &mut JoinSet<()>,
    api: &Api,
    clients: usize,
    wanted: &Wanted,
    over: &Arc<AtomicBool>,
) -> Arc<AtomicU64> {
    let grants = Arc::new(AtomicU64::new(0));
    for _ in 0..clients {
        let (api, wanted) = (Api::new(api.address()), wanted.clone());
        let (over, grants) = (Arc::clone(over), Arc::clone(&grants));
        crowd.spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let lease = wanted.acquire(&api).await;
                grants.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(1)).await;
                wanted.release(&api, &lease).await;
            }
        });
    }
    grants
}

#[tokio::test]
async fn who_wants_all_permits_is_served_behind_single_ones_at_another_server() {
    let cluster = Cluster::new(3);
    let (one, two) = (cluster.server(&[]).await, cluster.server(&[]).await);
    let name = unique("all");
    let (over, mut crowd) = (Arc::default(), JoinSet::new());
    let grants = stream(&mut crowd, &one.api(), 15, &Wanted::permits(&name, 10, 1), &over);
    eventually("the stream flows", || async { grants.load(Ordering::Relaxed) > 50 }).await;
    let (all, began) = (Wanted::permits(&name, 10, 10), Instant::now());
    for _ in 0..5 {
        let before = grants.load(Ordering::Relaxed);
        let lease = all.acquire(&two.api()).await;
        let passed = grants.load(Ordering::Relaxed) - before;
        println!("all permits after {} ms and {passed} single ones", number(&lease, "waited_ms"));
        all.release(&two.api(), &lease).await;
        let before = grants.load(Ordering::Relaxed);
        eventually("the stream flows again", || async { grants.load(Ordering::Relaxed) > before + 20 }).await;
    }
    println!("all permits five times in {:?}", began.elapsed());
    over.store(true, Ordering::Relaxed);
    crowd.join_all().await;
}

#[tokio::test]
async fn a_multilock_is_served_behind_streams_at_each_of_its_names_wherever_they_are() {
    let cluster = Cluster::new(3);
    let (one, two) = (cluster.server(&[]).await, cluster.server(&[]).await);
    for (where_, multilock) in [("the same server", one.api()), ("another server", two.api())] {
        let names = ["a", "b", "c", "d"].map(unique);
        let (over, mut crowd) = (Arc::default(), JoinSet::new());
        let streams: Vec<_> =
            names.iter().map(|name| stream(&mut crowd, &one.api(), 4, &Wanted::lock(name), &over)).collect();
        let count = || streams.iter().map(|grants| grants.load(Ordering::Relaxed)).collect::<Vec<_>>();
        eventually("the streams flow", || async { count().iter().all(|&grants| grants > 10) }).await;
        for many in 2..=4 {
            let before = count();
            let body = json!({"names": names[..many], "wait_ms": 60_000, "ttl_ms": 60_000});
            let lease = multilock.post("/v1/multilocks/acquire", body).await.ok();
            let passed: Vec<_> = count().iter().zip(before).map(|(after, before)| after - before).collect();
            println!(
                "a multilock of {many} at {where_} after {} ms; passed by {passed:?}",
                number(&lease, "waited_ms")
            );
            // Each name's queue has four in it, and the multilock comes behind those that are there.
            assert!(passed[..many].iter().all(|&passed| passed <= 2 * 4 + 2), "{passed:?}");
            let body = json!({"names": names[..many], "lease_id": secret(&lease)});
            multilock.post("/v1/multilocks/release", body).await.ok();
        }
        over.store(true, Ordering::Relaxed);
        crowd.join_all().await;
    }
}

#[tokio::test]
async fn a_server_that_dies_at_the_head_of_the_queue_keeps_nobody_waiting() {
    let cluster = Cluster::new(3);
    let (one, mut two) = (cluster.server(&[]).await, cluster.server(&[]).await);
    let mut took = Vec::new();
    for _ in 0..3 {
        let wanted = Wanted::lock(&unique("dead"));
        let lease = wanted.acquire(&one.api()).await;
        let waiting = |api: &Api| {
            let (api, wanted) = (api.clone(), wanted.clone());
            tokio::spawn(async move { wanted.acquire(&api).await })
        };
        let entries = || {
            let name = wanted.path.rsplit('/').next().unwrap();
            let queue = |node: &crate::support::Redis| -> String {
                node.command::<Option<String>>(&["GET", &format!("quorate:lock:{name}/queue")])
                    .unwrap_or_default()
            };
            cluster.nodes.iter().filter(|node| !queue(node).is_empty()).count()
        };
        let dies = waiting(&two.api());
        eventually("it stands in the queue", || async { entries() >= 2 }).await;
        let next = waiting(&one.api());
        eventually("another one waits", || async { one.api().metric("quorate_waiters").await == 1.0 }).await;
        two.kill();
        dies.abort();
        let released = Instant::now();
        wanted.release(&one.api(), &lease).await;
        let next = next.await.unwrap();
        took.push(released.elapsed());
        wanted.release(&one.api(), &next).await;
        two = cluster.server(&[]).await;
    }
    println!("a name whose head is dead changed hands after {took:?}");
    assert!(crate::support::median(took.clone()) < Duration::from_millis(1_500), "{took:?}");
}
