//! The web console, served from the binary: `/console` and the files of `console/` below it.
//!
//! It is a client of the public API like any other, and loads nothing from another host.

use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderName, Uri};
use axum::response::Redirect;

use super::problem::{Kind, Problem};
use super::request::{Nothing, Query};

/// A page may load its own files and call its own server, nothing else. No code and no style is inline.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

macro_rules! files {
    ($($path:literal),+ $(,)?) => { &[$(($path, include_str!(concat!("../../console/", $path)))),+] };
}

/// Name below `/console/`, text.
const FILES: &[(&str, &str)] = files![
    "index.html",
    "icon.svg",
    "style.css",
    "api.js",
    "app.js",
    "chart.js",
    "format.js",
    "kinds.js",
    "live.js",
    "members.js",
    "metrics.js",
    "name.js",
    "names.js",
    "overview.js",
    "parts.js",
    "try.js",
    "vendor/preact-htm.js",
    "vendor/uplot.css",
    "vendor/uplot.js",
];

type File = ([(HeaderName, &'static str); 4], &'static str);

/// The page, or one of its files.
pub(super) async fn get_console(_: Query<Nothing>, uri: Uri) -> Result<File, Problem> {
    let name = uri.path().strip_prefix("/console/").unwrap_or("index.html");
    let found = FILES.iter().find(|(path, _)| *path == name);
    let (_, text) = found.ok_or_else(|| Problem::from(Kind::NotFound))?;
    let media_type = match name.rsplit_once('.') {
        Some((_, "js")) => "text/javascript; charset=utf-8",
        Some((_, "css")) => "text/css; charset=utf-8",
        Some((_, "svg")) => "image/svg+xml",
        _ => "text/html; charset=utf-8",
    };
    let headers = [
        (CONTENT_TYPE, media_type),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (CACHE_CONTROL, "no-cache"),
    ];
    Ok((headers, text))
}

/// From `/` and `/console/` to the page. The address is relative, for a proxy may serve all of this below a path.
pub(super) async fn to_console(_: Query<Nothing>, uri: Uri) -> Redirect {
    Redirect::temporary(if uri.path() == "/" { "console" } else { "../console" })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;

    #[test]
    fn every_file_of_the_console_is_served_and_the_page_has_no_inline_code_and_no_other_host() {
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
        there.retain(|name| !name.ends_with(".LICENSE"));
        assert_eq!(there, FILES.iter().map(|(name, _)| (*name).to_owned()).collect());
        let page = FILES[0].1;
        assert!(!page.contains("://") && !page.contains("<style") && !page.contains(" on"), "{page}");
        let scripts = page.matches("<script").count();
        assert_eq!(page.matches("<script type=\"module\" src=\"console/").count(), scripts);
    }

    #[tokio::test]
    async fn a_file_that_is_not_there_is_not_found() {
        let get = |path| get_console(Query(Nothing {}), Uri::from_static(path));
        assert!(get("/console/../Cargo.toml").await.is_err());
        assert!(get("/console/vendor/uplot.LICENSE").await.is_err());
        let (headers, text) = get("/console/app.js").await.unwrap();
        assert!(headers.contains(&(CONTENT_TYPE, "text/javascript; charset=utf-8")));
        assert!(headers.contains(&(CONTENT_SECURITY_POLICY, POLICY)));
        assert!(text.contains("import"));
    }
}
