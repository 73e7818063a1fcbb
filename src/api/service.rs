//! What is about the server itself: liveness, readiness, nodes, metrics, documents.

use std::sync::{Arc, LazyLock};

use axum::body::Bytes;
use axum::http::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE};
use axum::http::{HeaderName, Uri};
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_swagger_ui::Config;

use super::caller::Caller;
use super::document::ReadinessProblems;
use super::problem::{Kind, Problem};
use super::request::{Answer, Json, Nothing, Query};
use super::state::{AppState, Context};
use super::views::NodesView;
use crate::access::Scope;

/// The process answers.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"status": "live"}))]
pub struct Liveness {
    /// Always `live`.
    #[schema(value_type = String, example = "live")]
    status: &'static str,
}

/// A quorum of nodes votes.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"status": "ready", "nodes": {"total": 3, "quorum": 2, "granted": 3, "held": 0, "failed": 0}}))]
pub struct Readiness {
    /// Always `ready`: a server that is not ready answers 503.
    #[schema(value_type = String, example = "ready")]
    status: &'static str,
    /// The state of the nodes: `granted` counts those that vote.
    nodes: NodesView,
}

/// A node as this server sees it.
#[derive(Serialize, ToSchema)]
#[schema(as = Node)]
pub struct NodeStateView {
    /// The node's label in metrics and logs.
    #[schema(example = "n1")]
    id: String,
    /// The node's address, without password.
    #[schema(example = "redis://10.0.0.1:6379/0")]
    address: String,
    /// `voting`, `quarantined`, `down` (it does not answer, or could grant nothing) or `refused`.
    #[schema(value_type = String, example = "voting")]
    state: &'static str,
    /// Why the node does not vote.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// For a quarantined node: time until it votes again, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    voting_in_ms: Option<u64>,
    /// The version of Redis.
    #[serde(skip_serializing_if = "Option::is_none")]
    redis_version: Option<String>,
    /// How long the node takes to answer, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_ms: Option<f64>,
}

/// All nodes.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "nodes": [
        {"id": "n1", "address": "redis://10.0.0.1:6379/0", "state": "voting", "redis_version": "7.4.1", "latency_ms": 0.21},
        {"id": "n2", "address": "redis://10.0.0.2:6379/0", "state": "voting", "redis_version": "7.4.1", "latency_ms": 0.34},
        {"id": "n3", "address": "redis://10.0.0.3:6379/0", "state": "quarantined", "reason": "restarted", "voting_in_ms": 241_000},
    ],
    "quorum": 2, "available": true,
}))]
pub struct NodeList {
    /// The nodes, in the order of the configuration.
    nodes: Vec<NodeStateView>,
    /// How many make a quorum.
    quorum: u32,
    /// Whether a quorum of nodes votes.
    available: bool,
}

/// What a key may do.
#[derive(Serialize, ToSchema)]
#[schema(as = Key, example = json!({"name": "team-orders", "scopes": ["read", "lock"], "prefixes": ["orders:"]}))]
pub struct KeyView {
    /// Its name in the key file; left out if the server asks for no keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// What it may do: `read`, `lock`, `admin`.
    #[schema(value_type = Vec<String>, example = json!(["read", "lock"]))]
    scopes: Vec<&'static str>,
    /// What the names begin with that it may touch; left out for all names.
    #[serde(skip_serializing_if = "Option::is_none")]
    prefixes: Option<Vec<String>>,
}

/// What may I do?
///
/// The scopes and names of the key that the request carries, whatever its scopes. A server that asks for no keys allows everything.
#[utoipa::path(get, path = "/v1/key",
    responses((status = 200, description = "What the key may do.", body = KeyView)))]
pub async fn get_key(caller: Caller, _: Query<Nothing>) -> Json<KeyView> {
    let Some(key) = caller.key else {
        let scopes = Scope::ALL.into_iter().map(Scope::name).collect();
        return Json(KeyView { name: None, scopes, prefixes: None });
    };
    let (name, prefixes) = (Some(key.name().to_owned()), key.prefixes().map(<[String]>::to_vec));
    Json(KeyView { name, scopes: key.scopes().map(Scope::name).collect(), prefixes })
}

/// Is the process alive?
///
/// Answers while the server can answer at all, whatever the state of the nodes.
#[utoipa::path(get, path = "/livez",
    responses((status = 200, description = "The process is alive.", body = Liveness)))]
pub async fn get_livez(_: Query<Nothing>) -> Json<Liveness> {
    Json(Liveness { status: "live" })
}

/// Can the server grant leases?
///
/// 200 only while a quorum of nodes votes and could grant a lease, and the server is not draining.
///
/// `detail` tells which nodes do not vote; why, only if the server asks for no API keys (`listNodes` always does).
#[utoipa::path(get, path = "/readyz",
    responses((status = 200, description = "A quorum of nodes votes.", body = Readiness), ReadinessProblems))]
pub async fn get_readyz(app: Context, _: Query<Nothing>) -> Answer<Readiness> {
    if app.service.is_draining() {
        return Err(crate::service::ServiceError::ShuttingDown.into());
    }
    let engine = &app.service.engine;
    if engine.available() {
        return Ok(Json(Readiness { status: "ready", nodes: engine.tally().into() }));
    }
    let mut nodes = node_views(&app);
    if app.keys.is_some() {
        // It may name addresses, and quote what a node said.
        nodes.iter_mut().for_each(|node| node.reason = None);
    }
    // After the quarantine that ends first there may be a quorum; a node that is down may be back any time.
    let again_ms = nodes.iter().filter_map(|node| node.voting_in_ms).min().unwrap_or(1000);
    Err(Problem::not_ready(why_not_ready(&nodes, engine.quorum()), engine.tally(), again_ms))
}

/// `1 of 3 nodes voting, 2 needed; n2 quarantined (restarted), voting in 241 s; n3 down`.
fn why_not_ready(nodes: &[NodeStateView], quorum: u32) -> String {
    use std::fmt::Write as _;
    let voting = nodes.iter().filter(|node| node.state == "voting").count();
    let mut text = format!("{voting} of {} nodes voting, {quorum} needed", nodes.len());
    for node in nodes.iter().filter(|node| node.state != "voting") {
        // Writing into a String cannot fail.
        let _ = write!(text, "; {} {}", node.id, node.state);
        if let Some(reason) = &node.reason {
            let _ = write!(text, " ({reason})");
        }
        if let Some(ms) = node.voting_in_ms {
            let _ = write!(text, ", voting in {} s", ms.div_ceil(1000));
        }
    }
    text
}

/// List the nodes.
///
/// As this server sees the nodes; another server may see them differently.
#[utoipa::path(get, path = "/v1/nodes",
    responses((status = 200, description = "All nodes.", body = NodeList)))]
pub async fn list_nodes(app: Context, _: Query<Nothing>) -> Json<NodeList> {
    let engine = &app.service.engine;
    Json(NodeList { nodes: node_views(&app), quorum: engine.quorum(), available: engine.available() })
}

fn node_views(app: &AppState) -> Vec<NodeStateView> {
    let nodes = app.service.engine.nodes().into_iter();
    nodes
        .map(|node| NodeStateView {
            id: node.id,
            address: node.address,
            state: node.state,
            reason: node.reason,
            voting_in_ms: node.voting_in_ms,
            redis_version: node.redis_version,
            latency_ms: node.latency_ms,
        })
        .collect()
}

/// Prometheus metrics.
///
/// No label contains the name of a lock.
#[utoipa::path(get, path = "/metrics",
    responses((status = 200, description = "The text format, version 0.0.4.", body = String, content_type = "text/plain",
        example = "# TYPE quorate_quorum_available gauge\nquorate_quorum_available 1\n")))]
pub async fn get_metrics(app: Context, _: Query<Nothing>) -> Typed<String> {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], (app.render_metrics)())
}

/// This document.
///
/// OpenAPI 3.1.
#[utoipa::path(get, path = "/openapi.json",
    responses((status = 200, description = "The document.", body = BTreeMap<String, serde_json::Value>, example = json!({"openapi": "3.1.0"}))))]
pub async fn get_openapi(app: Context, _: Query<Nothing>) -> Typed<Bytes> {
    ([(CONTENT_TYPE, "application/json")], app.document.clone())
}

/// This document for older tools.
///
/// OpenAPI 3.0.3.
#[utoipa::path(get, path = "/openapi-3.0.json",
    responses((status = 200, description = "The document.", body = BTreeMap<String, serde_json::Value>, example = json!({"openapi": "3.0.3"}))))]
pub async fn get_openapi_3_0(app: Context, _: Query<Nothing>) -> Typed<Bytes> {
    ([(CONTENT_TYPE, "application/json")], app.document_3_0.clone())
}

/// A body with its media type.
type Typed<B> = ([(HeaderName, &'static str); 1], B);

/// Swagger UI, from the binary. Served at `/docs` itself, without a redirect: `base` makes its
/// relative links right there, under whatever path a proxy puts the server.
pub async fn get_docs(_: Query<Nothing>, uri: Uri) -> Result<Response, Problem> {
    static CONFIG: LazyLock<Arc<Config<'static>>> = LazyLock::new(|| {
        Arc::new(Config::new(["../openapi.json"]).try_it_out_enabled(true).validator_url("none"))
    });
    let path = uri.path().strip_prefix("/docs").unwrap_or_default();
    let file = utoipa_swagger_ui::serve(path.trim_start_matches('/'), Arc::clone(&CONFIG)).ok().flatten();
    let file = file.ok_or_else(|| Problem::from(Kind::NotFound))?;
    let bytes = if path.is_empty() {
        String::from_utf8_lossy(&file.bytes)
            .replacen("<head>", "<head>\n    <base href=\"docs/\">", 1)
            .into_bytes()
    } else {
        file.bytes.into_owned()
    };
    let headers = [(CONTENT_TYPE, file.content_type), (CACHE_CONTROL, "no-cache".to_owned())];
    let zipped = file.gzpipped.then_some([(CONTENT_ENCODING, "gzip")]);
    Ok((headers, zipped, bytes).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn docs(path: &str) -> Result<Response, Problem> {
        get_docs(Query(Nothing {}), path.parse().unwrap()).await
    }

    #[tokio::test]
    async fn the_docs_need_nothing_from_elsewhere() {
        let page = docs("/docs").await.unwrap();
        let page = axum::body::to_bytes(page.into_body(), 1 << 20).await.unwrap();
        let page = String::from_utf8(page.to_vec()).unwrap();
        assert!(page.contains("<base href=\"docs/\">"), "{page}");
        assert!(!page.contains("://"), "{page}");
        for part in page.split(['"', '\'']).filter(|part| part.starts_with("./")) {
            assert!(docs(&format!("/docs/{}", &part[2..])).await.is_ok(), "{part}");
        }
        assert!(docs("/docs/nothing.js").await.is_err());
    }

    #[test]
    fn a_server_that_is_not_ready_says_which_node_keeps_it() {
        let node = |id: &str, state, reason: Option<&str>, voting_in_ms| NodeStateView {
            id: id.to_owned(),
            address: String::new(),
            state,
            reason: reason.map(str::to_owned),
            voting_in_ms,
            redis_version: None,
            latency_ms: None,
        };
        let nodes = [
            node("n1", "voting", None, None),
            node("n2", "quarantined", Some("restarted"), Some(240_001)),
            node("n3", "down", None, None),
        ];
        assert_eq!(
            why_not_ready(&nodes, 2),
            "1 of 3 nodes voting, 2 needed; n2 quarantined (restarted), voting in 241 s; n3 down"
        );
    }
}
