//! Runs the scripts in a Lua 5.1 of its own, as Redis does in its.
//!
//! What passes between Lua and the keyspace is converted by Redis's rules:
//! numbers go out as `%.17g` and come back cut to integers, nil and false are
//! one, a list ends at its first nil, an error is a table with a field `err`.

use std::sync::{Arc, LazyLock};

use mlua::{Function, Lua, LuaOptions, LuaString, MultiValue, StdLib, Table};
use parking_lot::Mutex;

use super::super::{NodeError, Script, Value};
use super::keyspace::{Keyspace, Reply, number_text};

/// What Redis puts around its scripts. Gets the keyspace as a function; returns `pcall`,
/// which scripts run under so that an error keeps its table.
const PRELUDE: &str = r"
local execute = ...
redis = {
  pcall = execute,
  call = function(...)
    local reply = execute(...)
    if type(reply) == 'table' and reply.err then error(reply, 0) end
    return reply
  end,
  error_reply = function(text)
    text = text:gsub('^%-', '')
    return {err = text:find(' ') and text or 'ERR ' .. text}
  end,
  status_reply = function(text) return {ok = text} end,
}
dofile, loadfile, print = nil, nil, nil
KEYS, ARGV = {}, {}
local run = pcall
setmetatable(_G, {
  __index = function(_, name)
    error('Script attempted to access nonexistent global variable \'' .. tostring(name) .. '\'', 2)
  end,
  __newindex = function() error('Attempt to modify a readonly table', 2) end,
})
return run
";

/// How deep a reply may nest.
const DEPTH_MAX: usize = 32;

/// The scripts as Lua compiles them, once for all nodes of the process: a simulation makes many.
static COMPILED: LazyLock<mlua::Result<Vec<Vec<u8>>>> = LazyLock::new(|| {
    let lua = Lua::new_with(StdLib::NONE, LuaOptions::new())?;
    let compile =
        |script: &Script| Ok(lua.load(script.text()).set_name("@user_script").into_function()?.dump(false));
    Script::ALL.iter().map(compile).collect()
});

/// The scripts, ready to run.
pub(super) struct Engine {
    lua: Lua,
    globals: Table,
    run: Function,
    scripts: Vec<Function>,
}

impl Engine {
    /// The scripts over `keyspace`.
    pub(super) fn new(keyspace: Arc<Mutex<Keyspace>>) -> mlua::Result<Self> {
        let lua = Lua::new_with(StdLib::TABLE | StdLib::STRING | StdLib::MATH, LuaOptions::new())?;
        let execute = lua.create_function(move |lua, words: MultiValue| {
            let reply = match words.iter().map(word).collect::<Option<Vec<_>>>() {
                None => {
                    Reply::Error("ERR Lua redis lib command arguments must be strings or integers".into())
                }
                Some(words) if words.is_empty() => {
                    Reply::Error("ERR Please specify at least one argument for this redis lib call".into())
                }
                Some(words) => keyspace.lock().execute(&words),
            };
            into_lua(lua, reply)
        })?;
        let run = lua.load(PRELUDE).set_name("@prelude").call(execute)?;
        let compiled = COMPILED.as_ref().map_err(Clone::clone)?;
        let scripts =
            compiled.iter().map(|code| lua.load(&code[..]).into_function()).collect::<mlua::Result<_>>()?;
        Ok(Self { globals: lua.globals(), lua, run, scripts })
    }

    /// Runs `script`.
    pub(super) fn run(
        &self,
        script: Script,
        keys: Vec<String>,
        args: Vec<String>,
    ) -> Result<Value, NodeError> {
        let run = || {
            self.globals.raw_set("KEYS", self.lua.create_sequence_from(keys)?)?;
            self.globals.raw_set("ARGV", self.lua.create_sequence_from(args)?)?;
            self.run.call(&self.scripts[script as usize])
        };
        // Only Lua itself can fail here (its memory, say): what a script raises comes back as a value.
        let (done, result): (bool, mlua::Value) = run().map_err(redis_error)?;
        if done { from_lua(&result, 0) } else { Err(raised(&result)) }
    }
}

fn redis_error(error: impl std::fmt::Display) -> NodeError {
    NodeError::Redis(format!("ERR {error}").into())
}

/// What a script raised: the reply of a command, or an error of its own.
fn raised(error: &mlua::Value) -> NodeError {
    match error {
        mlua::Value::Table(table) => match table.raw_get::<mlua::Value>("err") {
            Ok(mlua::Value::String(text)) => NodeError::Redis(text.to_string_lossy().into()),
            _ => redis_error("the script raised a table"),
        },
        mlua::Value::String(text) => redis_error(text.to_string_lossy()),
        other => redis_error(other.type_name()),
    }
}

/// An argument of `redis.call`.
fn word(value: &mlua::Value) -> Option<Vec<u8>> {
    match value {
        mlua::Value::String(text) => Some(text.as_bytes().to_vec()),
        // Up to 17 digits, %.17g is the plain number.
        mlua::Value::Integer(number) if number.unsigned_abs() < 100_000_000_000_000_000 => {
            Some(number.to_string().into_bytes())
        }
        mlua::Value::Integer(number) => Some(number_text(*number as f64).into_bytes()),
        mlua::Value::Number(number) => Some(number_text(*number).into_bytes()),
        _ => None,
    }
}

fn into_lua(lua: &Lua, reply: Reply) -> mlua::Result<mlua::Value> {
    let field = |name: &str, text: &str| {
        let table = lua.create_table_with_capacity(0, 1)?;
        table.raw_set(name, text)?;
        Ok(mlua::Value::Table(table))
    };
    match reply {
        Reply::Nil => Ok(mlua::Value::Boolean(false)),
        Reply::Int(number) => Ok(mlua::Value::Number(number as f64)),
        Reply::Bulk(text) => Ok(mlua::Value::String(lua.create_string(text)?)),
        Reply::Status(text) => field("ok", text),
        Reply::Error(text) => field("err", &text),
        Reply::List(list) => {
            let table = lua.create_table_with_capacity(list.len(), 0)?;
            for item in list {
                table.raw_push(into_lua(lua, item)?)?;
            }
            Ok(mlua::Value::Table(table))
        }
    }
}

fn from_lua(value: &mlua::Value, depth: usize) -> Result<Value, NodeError> {
    match value {
        mlua::Value::String(text) => Ok(Value::Text(text.to_string_lossy())),
        mlua::Value::Boolean(true) => Ok(Value::Int(1)),
        mlua::Value::Integer(number) => Ok(Value::Int(*number)),
        mlua::Value::Number(number) => Ok(Value::Int(*number as i64)),
        mlua::Value::Table(_) if depth == DEPTH_MAX => Err(redis_error("reached lua stack limit")),
        mlua::Value::Table(table) => {
            // Only a table with other fields than a list's can be an error or a status.
            if let Some(text) = text_field(table, "err") {
                return Err(NodeError::Redis(text.into()));
            }
            if let Some(text) = text_field(table, "ok") {
                return Ok(Value::Text(text));
            }
            let mut list = Vec::new();
            loop {
                match table.raw_get(list.len() + 1).map_err(redis_error)? {
                    mlua::Value::Nil => return Ok(Value::List(list)),
                    item => list.push(from_lua(&item, depth + 1)?),
                }
            }
        }
        _ => Ok(Value::Nil),
    }
}

fn text_field(table: &Table, name: &str) -> Option<String> {
    table.raw_get::<Option<LuaString>>(name).ok().flatten().map(|text| text.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eval(text: &str) -> Result<Value, NodeError> {
        let mut engine = Engine::new(Arc::new(Mutex::new(Keyspace::new()))).unwrap();
        engine.scripts[0] = engine.lua.load(text).set_name("@user_script").into_function().unwrap();
        engine.run(Script::Acquire, vec!["k1".into(), "k2".into()], vec!["a1".into()])
    }

    fn error(text: &str) -> String {
        match eval(text) {
            Err(NodeError::Redis(message)) => message.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn replies_are_converted_as_redis_converts_them() {
        let list = |items: &[i64]| Value::List(items.iter().copied().map(Value::Int).collect());
        for (text, value) in [
            ("return nil", Value::Nil),
            ("return false", Value::Nil),
            ("return true", Value::Int(1)),
            ("return 3.99", Value::Int(3)),
            ("return -3.99", Value::Int(-3)),
            ("return 9007199254740991", Value::Int(9_007_199_254_740_991)),
            ("return '9'", Value::Text("9".into())),
            ("return {1, 2, nil, 4}", list(&[1, 2])),
            ("return {1, false, 3}", Value::List(vec![Value::Int(1), Value::Nil, Value::Int(3)])),
            ("return {{1}, {}}", Value::List(vec![list(&[1]), list(&[])])),
            ("return redis.status_reply('FINE')", Value::Text("FINE".into())),
            ("return redis.call('SET', 'k', 'v')", Value::Text("OK".into())),
            ("return redis.call('GET', 'k')", Value::Nil),
            ("return {KEYS[2], ARGV[1], #KEYS, KEYS[3]}", {
                Value::List(vec![Value::Text("k2".into()), Value::Text("a1".into()), Value::Int(2)])
            }),
            ("redis.call('SET', 'k', 9007199254740991) return redis.call('GET', 'k')", {
                Value::Text("9007199254740991".into())
            }),
            ("return 'a\\255b'", Value::Text("a\u{fffd}b".into())),
        ] {
            assert_eq!(eval(text).unwrap(), value, "{text}");
        }
    }

    #[test]
    fn errors_carry_the_message_that_redis_gives() {
        let wrong_type = "WRONGTYPE Operation against a key holding the wrong kind of value";
        for (text, message) in [
            ("redis.call('ZADD', 'z', 1, 'a') return redis.call('GET', 'z')", wrong_type),
            ("redis.call('ZADD', 'z', 1, 'a') return redis.pcall('GET', 'z')", wrong_type),
            ("redis.call('FLUSHALL')", "ERR Unknown Redis command called from script"),
            ("redis.call()", "ERR Please specify at least one argument for this redis lib call"),
            ("redis.call('GET', {})", "ERR Lua redis lib command arguments must be strings or integers"),
            ("return redis.error_reply('NO way')", "NO way"),
            ("return redis.error_reply('-NO way')", "NO way"),
            ("return redis.error_reply('no')", "ERR no"),
            ("error('odd')", "ERR user_script:1: odd"),
            ("error({err = 'NO way'})", "NO way"),
            ("error()", "ERR nil"),
            ("return nothing", {
                "ERR user_script:1: Script attempted to access nonexistent global variable 'nothing'"
            }),
            ("leak = 1", "ERR user_script:1: Attempt to modify a readonly table"),
            ("local t = {} t[1] = t return t", "ERR reached lua stack limit"),
        ] {
            assert_eq!(error(text), message, "{text}");
        }
    }

    #[test]
    fn a_script_reaches_nothing_but_strings_tables_and_numbers() {
        for name in ["io", "os", "debug", "package", "require", "dofile", "loadfile", "print"] {
            assert!(error(&format!("return {name}")).contains("nonexistent global"), "{name}");
        }
    }
}
