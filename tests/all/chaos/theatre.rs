//! The deployment, and everything that goes wrong with it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::client::Addresses;
use crate::support::proxy::Proxy;
use crate::support::{Cluster, RedisOptions, Server, ServerOptions};

const NODES: usize = 5;
pub const SERVERS: usize = 3;
/// How many nodes may be away or silent at once; a majority stays, so that there is something
/// to check. Now and then one more goes, to see that this is only an outage.
const DISTURBED_MAX: usize = 2;
/// Short, so that a node that forgot votes again soon.
const MAX_TTL: [&str; 2] = ["--max-ttl", "1500ms"];

/// The deployment, and what is the matter with it.
pub struct Theatre {
    random: StdRng,
    pub cluster: Cluster,
    /// By server: a proxy before each node.
    networks: Vec<Vec<Proxy>>,
    options: Vec<ServerOptions>,
    pub servers: Vec<Option<Server>>,
    pub addresses: Addresses,
    /// What ends a fault, and when.
    cures: Vec<(Instant, usize, Cure)>,
    pub faults: BTreeMap<&'static str, u64>,
    /// Logs of servers that were killed.
    pub logs: String,
}

#[derive(Debug, Clone, Copy)]
enum Cure {
    /// Of a node: start it again, let it go on, give it memory.
    Restart,
    Resume,
    Memory,
    /// Of the network between a server and a node.
    Network(usize),
    /// Of nothing: the node is just left alone for a while.
    Rest,
    /// Of a server (the number is the server's).
    Server,
}

impl Theatre {
    pub fn new(seed: u64) -> Self {
        let cluster = Cluster::with(NODES, &RedisOptions::default(), &MAX_TTL);
        let (networks, options): (Vec<_>, Vec<_>) = (0..SERVERS).map(|_| cluster.proxies()).unzip();
        let options: Vec<ServerOptions> =
            options.into_iter().map(|options: ServerOptions| options.with(&MAX_TTL)).collect();
        let mut theatre = Self {
            random: StdRng::seed_from_u64(seed),
            cluster,
            networks,
            options,
            servers: (0..SERVERS).map(|_| None).collect(),
            addresses: Arc::default(),
            cures: Vec::new(),
            faults: BTreeMap::new(),
            logs: String::new(),
        };
        for server in 0..SERVERS {
            theatre.start_server(server);
        }
        theatre
    }

    fn start_server(&mut self, which: usize) {
        let server = Server::start(&self.options[which]);
        self.addresses.lock().unwrap()[which] = Some(server.api().address());
        self.servers[which] = Some(server);
    }

    fn kill_server(&mut self, which: usize) {
        self.addresses.lock().unwrap()[which] = None;
        if let Some(mut server) = self.servers[which].take() {
            server.kill();
            self.logs += &server.log();
        }
    }

    fn disturbed(&self) -> Vec<usize> {
        let nodes =
            self.cures.iter().filter(|(_, _, cure)| !matches!(cure, Cure::Server)).map(|(_, node, _)| *node);
        let mut nodes: Vec<usize> = nodes.collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    fn cure(&mut self, subject: usize, cure: Cure) {
        match cure {
            Cure::Restart => self.cluster.nodes[subject].restart(),
            Cure::Resume => self.cluster.nodes[subject].resume(),
            Cure::Memory => {
                self.cluster.nodes[subject].command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
            }
            Cure::Network(server) => self.networks[server][subject].heal(),
            Cure::Rest => {}
            Cure::Server => self.start_server(subject),
        }
    }

    fn cure_what_is_due(&mut self, now: Instant) {
        let (due, later) = self.cures.drain(..).partition::<Vec<_>, _>(|(at, ..)| *at <= now);
        self.cures = later;
        for (_, subject, cure) in due {
            self.cure(subject, cure);
        }
    }

    /// One thing goes wrong.
    fn strike(&mut self) {
        let disturbed = self.disturbed();
        let allowed = DISTURBED_MAX + usize::from(self.random.random_bool(0.05));
        let node = self.random.random_range(0..NODES);
        if disturbed.contains(&node) || disturbed.len() >= allowed {
            return;
        }
        let server = self.random.random_range(0..SERVERS);
        let span = Duration::from_millis(self.random.random_range(50..1_500));
        // A node that forgot is away for a while longer: its quarantine.
        let forgetful = span + Duration::from_millis(2_000);
        let mut end =
            |after: Duration, node: usize, cure: Cure| self.cures.push((Instant::now() + after, node, cure));
        let redis = &mut self.cluster.nodes[node];
        let proxy = &self.networks[server][node];
        let name = match self.random.random_range(0..16) {
            0..=1 => {
                redis.kill();
                end(span, node, Cure::Restart);
                end(forgetful, node, Cure::Rest);
                "kill -9, empty restart"
            }
            2..=3 => {
                redis.stop();
                end(span, node, Cure::Resume);
                "SIGSTOP"
            }
            4 => {
                redis.command::<()>(&["FLUSHALL"]);
                end(forgetful, node, Cure::Rest);
                "FLUSHALL"
            }
            5 => {
                redis.command::<()>(&["CLIENT", "PAUSE", &span.as_millis().to_string(), "ALL"]);
                end(span, node, Cure::Rest);
                "CLIENT PAUSE"
            }
            6 => {
                redis.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
                end(span, node, Cure::Memory);
                "out of memory"
            }
            7 => {
                redis.command::<()>(&["SCRIPT", "FLUSH"]);
                "SCRIPT FLUSH"
            }
            8 => {
                let _ = redis.try_command::<i64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
                "CLIENT KILL"
            }
            9 => {
                let _ = redis.try_command::<i64>(&["CLIENT", "KILL", "TYPE", "pubsub"]);
                "CLIENT KILL pubsub"
            }
            10 => {
                proxy.delay(span / 10);
                end(span, node, Cure::Network(server));
                "delay"
            }
            11 => {
                proxy.cut();
                end(span, node, Cure::Network(server));
                "cut"
            }
            12 => {
                proxy.black_hole();
                end(span, node, Cure::Network(server));
                "black hole"
            }
            13 => {
                proxy.mute_requests();
                end(span, node, Cure::Network(server));
                "one way: requests swallowed"
            }
            14 => {
                proxy.mute_answers();
                end(span, node, Cure::Network(server));
                "one way: answers swallowed"
            }
            _ => {
                if self.servers.iter().any(Option::is_none) {
                    return;
                }
                end(span, server, Cure::Server);
                self.kill_server(server);
                "API server killed"
            }
        };
        *self.faults.entry(name).or_default() += 1;
    }

    pub fn play(&mut self, span: Duration) {
        let curtain = Instant::now() + span;
        while Instant::now() < curtain {
            self.strike();
            let pause = Duration::from_millis(self.random.random_range(10..150));
            std::thread::sleep(pause);
            self.cure_what_is_due(Instant::now());
        }
        for (_, subject, cure) in std::mem::take(&mut self.cures) {
            self.cure(subject, cure);
        }
    }
}
