//! A deployment: several nodes, marked as new, with servers over them.

use super::proxy::Proxy;
use super::redis::{Redis, RedisOptions};
use super::server::{Server, ServerOptions, init};

/// Independent nodes of one deployment.
pub struct Cluster {
    pub nodes: Vec<Redis>,
}

impl Cluster {
    /// Starts `n` nodes and marks them for leases as long as servers grant by default, so that these
    /// find nothing to note.
    pub fn new(n: usize) -> Self {
        Self::with(n, &RedisOptions::default(), &["--max-ttl", "5m"])
    }

    /// Starts `n` nodes and marks them with these arguments for `quorate init`.
    pub fn with(n: usize, options: &RedisOptions, arguments: &[&str]) -> Self {
        let cluster = Self::blank(n, options);
        cluster.init(arguments);
        cluster
    }

    /// Starts `n` nodes and leaves them blank.
    pub fn blank(n: usize, options: &RedisOptions) -> Self {
        Self { nodes: (0..n).map(|_| Redis::with(options.clone())).collect() }
    }

    /// Marks the nodes.
    pub fn init(&self, arguments: &[&str]) {
        let output = init(&self.urls(), arguments);
        assert!(output.status.success(), "init: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// The URLs of the nodes.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Redis::url).collect()
    }

    /// Settings of a server over all nodes.
    pub fn options(&self) -> ServerOptions {
        ServerOptions::over(self.urls())
    }

    /// A server over all nodes, with all of them voting.
    pub async fn server(&self, arguments: &[&str]) -> Server {
        let server = Server::start(&self.options().with(arguments));
        server.all_voting().await;
        server
    }

    /// A proxy before each node, and the settings of a server that reaches the nodes through them.
    pub fn proxies(&self) -> (Vec<Proxy>, ServerOptions) {
        let proxies: Vec<Proxy> = self.nodes.iter().map(|node| Proxy::before(node.port())).collect();
        let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
        (proxies, ServerOptions::over(urls))
    }

    /// Keys at any node that hold a lease of something with `name` in it.
    pub fn leases(&self, name: &str) -> Vec<String> {
        let running = self.nodes.iter().filter(|node| node.is_running());
        running.flat_map(|node| node.leases(name)).collect()
    }
}
