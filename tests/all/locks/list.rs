//! `GET /v1/locks`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::{Api, Shared, number, token, unique};

async fn pages(api: &Api, query: &str, limit: usize) -> Vec<Vec<Value>> {
    let mut pages = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = api.get(&format!("/v1/locks?{query}&limit={limit}{cursor}")).await.ok();
        let locks = page["locks"].as_array().unwrap().clone();
        assert!(locks.len() <= limit);
        pages.push(locks);
        match page.get("next_cursor") {
            Some(next) => cursor = format!("&cursor={}", next.as_str().expect("a cursor")),
            None => return pages,
        }
        assert!(pages.len() < 1000, "the pages do not end");
    }
}

fn names(pages: &[Vec<Value>]) -> Vec<String> {
    pages.iter().flatten().map(|lock| lock["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn locks_are_listed_page_by_page_each_once() {
    for total in [1, 3, 5] {
        let shared = Shared::nodes(total);
        let prefix = unique("paged");
        let mut expected = BTreeSet::new();
        for i in 0..25 {
            let name = format!("{prefix}:{i:02}");
            shared.api().acquire(&name, json!({"owner": format!("o{i}")})).await.ok();
            expected.insert(name);
        }
        for (api, limit) in
            [(shared.api(), 10), (shared.other_api(), 1), (shared.api(), 25), (shared.api(), 1000)]
        {
            let pages = pages(&api, &format!("prefix={prefix}:"), limit).await;
            let found = names(&pages);
            assert_eq!(found.iter().cloned().collect::<BTreeSet<_>>(), expected, "limit {limit}");
            assert_eq!(found.len(), 25, "a lock is listed twice");
            assert!(pages.len() <= 25 / limit + 1, "{} pages of {limit}", pages.len());
        }
        let page = shared.api().get(&format!("/v1/locks?prefix={prefix}:07")).await.ok();
        let lock = &page["locks"][0];
        assert_eq!(lock["owner"], "o7");
        assert_eq!(lock["held"], true);
        assert_eq!(token(lock), token(&shared.api().lock(&format!("{prefix}:07")).await));
        assert!(number(lock, "remaining_ms") > 0);
        assert!(lock.get("lease_id").is_none());
        assert!(page.get("next_cursor").is_none());
    }
}

#[tokio::test]
async fn only_held_locks_whose_name_begins_with_the_prefix_are_listed() {
    let api = Shared::nodes(3).api();
    let stem = unique("prefix");
    for name in ["a", "a:1", "ab", "b", "A", "a.b", "a~b"] {
        api.acquire(&format!("{stem}-{name}"), json!({})).await.ok();
    }
    let gone = api.acquire(&format!("{stem}-a:2"), json!({})).await.ok();
    api.release(&format!("{stem}-a:2"), &gone).await.ok();
    api.post(&format!("/v1/semaphores/{stem}-a:3/acquire"), json!({"limit": 3})).await.ok();
    api.post(&format!("/v1/elections/{stem}-a:4/campaign"), json!({"candidate": "c"})).await.ok();
    for (prefix, expected) in [
        ("-a", vec!["-a", "-a.b", "-a:1", "-ab", "-a~b"]),
        ("-a:", vec!["-a:1"]),
        ("-a.", vec!["-a.b"]),
        ("-A", vec!["-A"]),
        ("-c", vec![]),
    ] {
        let mut found = names(&pages(&api, &format!("prefix={stem}{prefix}"), 100).await);
        found.sort();
        assert_eq!(
            found,
            expected.iter().map(|name| format!("{stem}{name}")).collect::<Vec<_>>(),
            "{prefix}"
        );
    }
}

#[tokio::test]
async fn a_thousand_locks_fit_on_a_page_and_a_hundred_are_the_default() {
    let shared = Shared::nodes(3);
    let prefix = unique("many");
    let mut takers = tokio::task::JoinSet::new();
    for part in 0..10 {
        let (api, prefix) = (shared.api(), prefix.clone());
        takers.spawn(async move {
            for i in 0..101 {
                api.acquire(&format!("{prefix}:{part}:{i}"), json!({})).await.ok();
            }
        });
    }
    takers.join_all().await;
    let api = shared.other_api();
    let first = api.get(&format!("/v1/locks?prefix={prefix}")).await.ok();
    assert_eq!(first["locks"].as_array().unwrap().len(), 100);
    let pages = pages(&api, &format!("prefix={prefix}"), 1000).await;
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [1000, 10]);
    assert_eq!(names(&pages).into_iter().collect::<BTreeSet<_>>().len(), 1010);
}

#[tokio::test]
async fn limits_cursors_and_prefixes_that_cannot_be_are_refused() {
    let api = Shared::nodes(3).api();
    for (query, field) in [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=-1", "limit"),
        ("limit=ten", "limit"),
        ("limit=1.5", "limit"),
        ("limit=99999999999999999999999", "limit"),
        ("cursor=nonsense", "cursor"),
        ("prefix=a%20b", "prefix"),
        ("prefix=a%2Fb", "prefix"),
        ("prefix=*", "prefix"),
        ("prefx=a", "prefx"),
        ("prefix=%FF", "prefix"),
    ] {
        let problem = api.get(&format!("/v1/locks?{query}")).await.problem(400, "invalid_request");
        assert_eq!(problem["errors"][0]["field"], field, "{query}: {problem}");
    }
}
