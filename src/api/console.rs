//! The web console, from the binary: `GET /console` and the files of `console/` below it.
//!
//! It is a client of the public API like any other, and nothing in it comes from another host.

use axum::body::Body;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderValue, Uri};
use axum::response::{IntoResponse, Redirect, Response};

use super::problem::Problem;

/// What a page of the console may do: load its own files, call its own server, and nothing else. Nothing is inline.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

macro_rules! files {
    ($($path:literal: $media_type:expr),+ $(,)?) => {
        &[$(($path, $media_type, include_str!(concat!("../../console/", $path)))),+]
    };
}

/// Path below `/console/`, media type, text.
const FILES: &[(&str, &str, &str)] = files![
    "api.js": SCRIPT,
    "app.js": SCRIPT,
    "chart.js": SCRIPT,
    "format.js": SCRIPT,
    "icon.svg": "image/svg+xml",
    "kinds.js": SCRIPT,
    "live.js": SCRIPT,
    "members.js": SCRIPT,
    "metrics.js": SCRIPT,
    "name.js": SCRIPT,
    "names.js": SCRIPT,
    "overview.js": SCRIPT,
    "parts.js": SCRIPT,
    "style.css": STYLE,
    "try.js": SCRIPT,
    "vendor/preact-htm.js": SCRIPT,
    "vendor/uplot.css": STYLE,
    "vendor/uplot.js": SCRIPT,
];

/// The page.
pub(super) async fn get_console() -> Response {
    file("text/html; charset=utf-8", include_str!("../../console/index.html"))
}

/// One of its files.
pub(super) async fn get_console_file(uri: Uri) -> Result<Response, Problem> {
    let path = uri.path().strip_prefix("/console/").unwrap_or_default();
    let found = FILES.iter().find(|(name, _, _)| *name == path).ok_or_else(Problem::not_found)?;
    Ok(file(found.1, found.2))
}

/// `/` leads to the console; the address is relative, since a proxy may serve all of this below a path.
pub(super) async fn get_root() -> Response {
    Redirect::temporary("console").into_response()
}

fn file(media_type: &'static str, text: &'static str) -> Response {
    let mut response = Response::new(Body::from(text));
    for (name, value) in [
        (CONTENT_TYPE, media_type),
        (CONTENT_SECURITY_POLICY, POLICY),
        (CACHE_CONTROL, "no-cache"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;

    #[test]
    fn every_file_of_the_console_is_served_and_none_has_inline_code_or_another_host() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/console/");
        let mut there = BTreeSet::new();
        for folder in ["", "vendor/"] {
            for entry in fs::read_dir(format!("{root}{folder}")).unwrap() {
                let entry = entry.unwrap();
                if entry.file_type().unwrap().is_file() {
                    there.insert(format!("{folder}{}", entry.file_name().to_str().unwrap()));
                }
            }
        }
        there.retain(|name| !name.ends_with(".LICENSE") && name != "index.html");
        assert_eq!(there, FILES.iter().map(|(name, _, _)| (*name).to_owned()).collect());
        let page = include_str!("../../console/index.html");
        assert!(!page.contains("://") && !page.contains("<style") && !page.contains(" on"), "{page}");
        assert_eq!(
            page.matches("<script").count(),
            page.matches("<script type=\"module\" src=\"console/").count()
        );
    }

    #[tokio::test]
    async fn a_file_that_is_not_there_is_not_found() {
        assert!(get_console_file(Uri::from_static("/console/../Cargo.toml")).await.is_err());
        let script = get_console_file(Uri::from_static("/console/app.js")).await.unwrap();
        assert_eq!(script.headers()[CONTENT_TYPE], SCRIPT);
        assert_eq!(script.headers()[CONTENT_SECURITY_POLICY], POLICY);
    }
}
