//! Settings from all sources, and which values are refused.

use super::*;

fn environment(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

/// What clap reads, and which of it was given.
fn parse(words: &[&str]) -> (Settings, clap::ArgMatches) {
    let matches = settings::arguments().no_binary_name(true).try_get_matches_from(words).unwrap();
    (<Settings as clap::FromArgMatches>::from_arg_matches(&matches).unwrap(), matches)
}

fn gather(words: &[&str], env: &[(&str, &str)], toml: &str) -> Result<Settings, ConfigError> {
    let file = file(toml);
    let (flags, matches) = parse(words);
    let is_given = |name: &str| matches.value_source(name) == Some(clap::parser::ValueSource::CommandLine);
    Settings::gather(&flags, is_given, environment(env), Some(file.path()))
}

fn serve(words: &[&str]) -> Result<Config, ConfigError> {
    Config::new(parse(words).0, Role::Serve)
}

/// `words` and three nodes.
fn with_nodes<'a>(words: &[&'a str]) -> Vec<&'a str> {
    [words, &["--redis", "redis://a:6379,redis://b:6379,redis://c:6379"]].concat()
}

#[test]
fn flags_come_before_the_environment_and_that_before_the_file() {
    let env = [("QUORATE_MAX_TTL", "2s"), ("QUORATE_MAX_WAIT", "2s")];
    let toml = "max_ttl = \"3s\"\nmax_wait = 3000\nnode_timeout = \"300ms\"\n";
    let settings = gather(&["--max-ttl", "1s"], &env, toml).unwrap();
    let seconds = |span: Span| span.0.as_secs_f64();
    assert_eq!(seconds(settings.max_ttl), 1.0);
    assert_eq!(seconds(settings.max_wait), 2.0);
    assert_eq!(seconds(settings.node_timeout), 0.3);
    assert_eq!(seconds(settings.body_timeout), 10.0);
}

#[test]
fn nodes_are_a_list_in_the_file_and_commas_in_the_environment() {
    let env = [("QUORATE_REDIS", "redis://a:1, redis://b:2,")];
    let from_env = gather(&[], &env, "redis = [\"redis://z\"]").unwrap();
    let config = Config::new(from_env, Role::Serve).unwrap();
    assert_eq!(
        config.redis.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["redis://a:1", "redis://b:2"]
    );
    let from_file = gather(&[], &[], "redis = [\"redis://a\", \"redis://b\"]").unwrap();
    assert_eq!(Config::new(from_file, Role::Serve).unwrap().redis.len(), 2);
}

#[test]
fn words_that_look_like_numbers_are_words_in_the_environment() {
    let env = [("QUORATE_KEY_PREFIX", "123"), ("QUORATE_LOG_REQUESTS", "true"), ("QUORATE_THREADS", "4")];
    let settings = gather(&[], &env, "").unwrap();
    assert_eq!(settings.key_prefix, "123");
    assert_eq!(settings.log_requests, Switch(true));
    assert_eq!(settings.threads, 4);
}

#[test]
fn variables_that_are_empty_or_not_ours_change_nothing() {
    let env = [
        ("QUORATE_API_KEYS", ""),
        ("QUORATE_PORT", "tcp://10.0.0.1:8080"),
        ("QUORATE_LEASE_ID", "x"),
        ("QUORATE_listen", "x"),
        ("LISTEN", "x"),
    ];
    assert_eq!(gather(&[], &env, "").unwrap(), parse(&[]).0);
}

#[test]
fn a_wrong_value_is_named_with_its_place() {
    let none: &[(&str, &str)] = &[];
    let wrong = [("QUORATE_MAX_TTL", "soon")];
    let cases = [
        (&wrong[..], "", ["max_ttl", "environment", "soon"]),
        (none, "max_tll = 3", ["max_tll", "file", "no such setting"]),
        (none, "QUORATE_MAX_TTL = 3", ["QUORATE_MAX_TTL", "file", "no such setting"]),
        (none, "[limits]\nmax_ttl = 3", ["limits", "file", "no such setting"]),
        (none, "[default]\nmax_tll = 3", ["default", "file", "no such setting"]),
        (none, "log_format = \"xml\"", ["log_format", "file", "xml"]),
        (none, "listen = [1]", ["listen", "file", "sequence"]),
        (none, "redis = [7101, 7102]", ["redis", "file", "a list of URLs"]),
    ];
    for (env, toml, words) in cases {
        let message = gather(&[], env, toml).unwrap_err().to_string();
        for word in words {
            assert!(message.contains(word), "{message:?} lacks {word:?}");
        }
    }
}

#[test]
fn a_file_that_is_missing_is_an_error() {
    let missing = Path::new("/nonexistent/quorate.toml");
    let error = Settings::gather(&parse(&[]).0, |_| false, [], Some(missing)).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/quorate.toml"), "{error}");
}

#[test]
fn durations_are_read_as_documented() {
    for (text, ms) in
        [("3s", 3_000), ("250ms", 250), ("1500", 1_500), ("1m", 60_000), ("1m 30s", 90_000), ("0", 0)]
    {
        assert_eq!(text.parse::<Span>().unwrap().0, Duration::from_millis(ms), "{text}");
    }
    for bad in ["", "s", "3 parsecs", "-1", "1.5", "100us", "99999999999999999999s", "101years"] {
        assert!(bad.parse::<Span>().is_err(), "{bad}");
    }
}

#[test]
fn the_file_that_is_printed_says_the_defaults_and_shows_every_setting() {
    let text = commented_file();
    assert_eq!(gather(&[], &[], &text).unwrap(), parse(&[]).0);
    let all: String = text
        .lines()
        .map(|line| line.strip_prefix("# ").filter(|rest| rest.contains(" = ")).unwrap_or(line))
        .fold(String::new(), |text, line| text + line + "\n");
    let shown: toml::Table = all.parse().unwrap();
    let mut shown: Vec<String> = shown.keys().cloned().collect();
    let mut names = Settings::names();
    shown.sort();
    names.sort();
    assert_eq!(shown, names);
    gather(&[], &[], &all).unwrap();
}

#[test]
fn passwords_are_shown_by_nothing() {
    let url = "rediss://user:s3cret@node-1:6380/2";
    let parsed: RedisUrl = url.parse().unwrap();
    assert_eq!(parsed.expose(), url);
    assert_eq!(parsed.to_string(), "rediss://node-1:6380/2");
    let socket: RedisUrl = "unix:///run/redis.sock?db=1&pass=s3cret".parse().unwrap();
    assert_eq!(socket.to_string(), "unix:///run/redis.sock");
    let settings = parse(&["--redis", url]).0;
    let mut shown = format!("{parsed:?} {socket:?} {settings:?}");
    shown += &format!("{:?}", Config::new(settings, Role::Serve).unwrap());
    for bad in ["http://user:s3cret@a", "redis://u:s3cret@[", "s3cret", "redis://quorate:7/s3cret@a"] {
        shown += &serve(&["--redis", bad]).unwrap_err().to_string();
    }
    assert!(!shown.contains("s3cret"), "{shown}");
}

#[test]
fn a_file_that_is_no_toml_is_named_and_not_shown() {
    for text in ["\n\nredis = [\"redis://:s3cret@a\"", "redis = \"redis://:s3cret@a\nmax_ttl = 1"] {
        let error = gather(&[], &[], text).unwrap_err().to_string();
        assert!(!error.contains("s3cret"), "{error}");
        assert!(error.starts_with("the file /") && error.contains("line "), "{error}");
    }
}

#[test]
fn nodes_and_their_password_may_stand_in_files() {
    let nodes = file("# ours\nredis://a:6379\n\nredis://u:own@b:6379/1\nunix:///run/c.sock\n");
    let password = file("p@ss wo%72d\n");
    let paths = [&nodes, &password].map(|file| file.path().to_str().unwrap());
    let config = serve(&["--redis-file", paths[0], "--redis-password-file", paths[1]]).unwrap();
    let urls: Vec<&str> = config.redis.iter().map(RedisUrl::expose).collect();
    assert_eq!(urls, ["redis://a:6379", "redis://u:own@b:6379/1", "unix:///run/c.sock"]);
    assert_eq!(config.redis_password_file.as_deref(), Some(password.path()));
    let empty = file("\n");
    let paths = [paths[0], empty.path().to_str().unwrap()];
    let error = serve(&["--redis-file", paths[0], "--redis-password-file", paths[1]]).unwrap_err();
    assert!(error.to_string().ends_with("is empty"), "{error}");
}

#[test]
fn nodes_are_named_in_one_place_or_the_server_asks_which() {
    let nodes = file("redis://a:6379\nredis://b:6379\nredis://d:6379\n");
    let file = ["--redis-file", nodes.path().to_str().unwrap()];
    let both = parse(&with_nodes(&file)).0;
    for role in [Role::Serve, Role::Init] {
        let error = Config::new(both.clone(), role).unwrap_err().to_string();
        assert!(error.contains("redis and redis_file"), "{error}");
        assert!(!error.contains("twice"), "{error}");
    }
    assert_eq!(serve(&file).unwrap().redis.len(), 3);
    assert!(Config::new(both, Role::Dev { nodes: 3 }).is_ok());
}

#[test]
fn authorities_for_nodes_without_tls_are_refused() {
    let ca = ["--redis-ca", "ca.pem"];
    let error = serve(&with_nodes(&ca)).unwrap_err().to_string();
    assert!(error.contains("redis_ca") && error.contains("rediss://"), "{error}");
    assert!(serve(&[&ca[..], &["--redis", "redis://a,rediss://b,unix:///c"]].concat()).is_ok());
    assert!(Config::new(parse(&ca).0, Role::Dev { nodes: 3 }).is_ok());
}

#[test]
fn a_log_level_is_a_level_or_names_one_for_each_target() {
    let level = |text: &str| serve(&with_nodes(&["--log-level", text]));
    for good in ["info", "WARN", "off", "info,quorate::node=debug", "warn, hyper=off", "[request]=trace"] {
        assert!(level(good).is_ok(), "{good}");
    }
    for bad in ["bogus!!", "verbose", "info,quorate", "inf"] {
        assert!(level(bad).unwrap_err().to_string().contains("log_level"), "{bad}");
    }
}

#[test]
fn every_wrong_value_is_told_at_once() {
    let words = ["--max-ttl", "0", "--threads", "0", "--tls-cert", "x", "--key-prefix", "a b"];
    let message = serve(&words).unwrap_err().to_string();
    for name in ["max_ttl", "threads", "tls_cert", "key_prefix", "redis"] {
        assert!(message.contains(name), "{message:?} lacks {name}");
    }
}

#[test]
fn without_keys_only_loopback_is_served() {
    let on = |words: &[&str], listen| serve(&with_nodes(&[words, &["--listen", listen]].concat()));
    for loopback in ["127.0.0.1:0", "[::1]:8080", "localhost:80", "127.3.2.1:1", "[::ffff:127.0.0.1]:1"] {
        assert!(on(&[], loopback).is_ok(), "{loopback}");
    }
    for open in ["0.0.0.0:8080", "[::]:8080", "10.0.0.1:80"] {
        assert!(on(&[], open).unwrap_err().to_string().contains("--insecure-no-auth"), "{open}");
        assert!(on(&["--insecure-no-auth"], open).is_ok(), "{open}");
        assert!(on(&["--api-keys", "keys"], open).is_ok(), "{open}");
        let dev = Config::new(parse(&["--listen", open]).0, Role::Dev { nodes: 3 });
        assert!(dev.is_ok(), "{open}");
    }
}

#[test]
fn a_node_that_is_listed_twice_is_refused() {
    let error = serve(&["--redis", "redis://a:1,redis://b:1,redis://a:1"]).unwrap_err();
    assert!(error.to_string().contains("redis://a:1 is listed twice"), "{error}");
}

#[test]
fn a_range_is_told_in_units_that_one_can_read() {
    let error = serve(&with_nodes(&["--fence-retention", "2years"])).unwrap_err().to_string();
    assert!(error.contains("is not from 1s to 365days"), "{error}");
}
