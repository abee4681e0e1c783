//! docs/reference.md: what there is of every name that the reference of MongoDB's manual has. The code is asked: its tables where it has
//! some, else its parsers, or a server. `UPDATE=1` writes the page anew.
#![allow(clippy::disallowed_methods, reason = "a test reads and writes a file of the repository")]

#[path = "../reference/page.rs"]
mod page;

use std::collections::BTreeSet;

use sheaf_aggregate::{ACCUMULATORS, STAGES, window_functions};
use sheaf_bson::{DocBuf, Value, array, doc};
use sheaf_collation::Collation;
use sheaf_errors::{Error, Result};
use sheaf_expr::{Expr, ParseCx};
use sheaf_front::params::Parameters;
use sheaf_query::matcher::Matcher;
use sheaf_query::projection::{Mode, Projection};
use sheaf_query::update::Update;
use sheaf_server::commands::TABLE;

use super::support::{Connection, Server};
use page::Known;

const HEAD: &str = "\
# What there is of MongoDB's reference

Every name that the reference of MongoDB 8.2's manual has, and its state here. [options.md](options.md) is the same of the command line
and the configuration file, [commands.md](commands.md) has what commands say of themselves, and
[compatibility.md](compatibility.md) tells where what is there differs.

A test makes this page of the names in `crates/server/tests/reference/manual.txt` and of what the code answers
(`UPDATE=1 cargo test -p sheaf-server --test all reference` writes it anew). *no (error N)* is the answer to its use.
";

fn error(error: &Error) -> String {
    format!("error {}", error.code().0)
}

/// An error of this text is the answer to an unknown name; every other one is of a known name's use.
fn unless<T>(result: Result<T>, unknown: &[&str]) -> Known {
    match result {
        Err(found) if unknown.iter().any(|text| found.message().contains(text)) => Err(error(&found)),
        _ => Ok(()),
    }
}

fn listed<'a>(name: &str, mut names: impl Iterator<Item = &'a str>, code: i32) -> Known {
    if names.any(|known| known == name) { Ok(()) } else { Err(format!("error {code}")) }
}

fn filter(spec: &DocBuf) -> Result<Matcher> {
    Matcher::parse(spec.as_raw(), &mut ParseCx::new())
}

/// An operator stands at a field or for itself.
fn query(name: &str) -> Known {
    let unknown = ["unknown operator", "unknown top level operator"];
    let alone = unless(filter(&doc! { name: 1 }), &unknown);
    alone.or_else(|_| unless(filter(&DocBuf::new().with("v", &doc! { name: 1 })), &unknown))
}

fn shape(name: &str) -> Known {
    let (list, geometry) = (array![], doc! { "type": "Point" });
    let argument =
        if name == "$geometry" { Value::Document(geometry.as_raw()) } else { Value::Array(list.as_raw()) };
    let within = DocBuf::new().with("$geoWithin", &DocBuf::new().with(name, argument));
    let within = unless(filter(&DocBuf::new().with("v", &within)), &["unknown geo specifier"]);
    let point = array![0, 0];
    let near = DocBuf::new().with("$near", Value::Array(point.as_raw())).with(name, 1);
    within.or_else(|_| unless(filter(&DocBuf::new().with("v", &near)), &["invalid argument", "unknown"]))
}

fn update(spec: Value<'_>) -> Result<Update> {
    Update::parse(spec, &[], &mut ParseCx::new())
}

fn of_update(spec: &DocBuf, unknown: &[&str]) -> Known {
    unless(update(Value::Document(spec.as_raw())), unknown)
}

fn place(name: &str) -> Known {
    let path = format!("v.{}", name.replace("<identifier>", "one"));
    let spec = DocBuf::new().with("$set", &DocBuf::new().with(&path, 1));
    let filters = [doc! { "one": 1 }];
    let filters: Vec<_> = filters.iter().filter(|_| name.contains('<')).map(DocBuf::as_raw).collect();
    let parsed = Update::parse(Value::Document(spec.as_raw()), &filters, &mut ParseCx::new());
    parsed.map(|_| ()).map_err(|found| error(&found))
}

fn update_stage(name: &str) -> Known {
    let stage = match name {
        "$unset" => doc! { name: "v" },
        "$replaceRoot" => doc! { name: { "newRoot": {} } },
        _ => doc! { name: { "v": 1 } },
    };
    let pipeline = array![&stage];
    update(Value::Array(pipeline.as_raw())).map(|_| ()).map_err(|found| error(&found))
}

fn projection(name: &str) -> Known {
    let spec = match name {
        "$" => doc! { "v.$": 1 },
        "$elemMatch" => doc! { "v": { "$elemMatch": { "a": 1 } } },
        "$meta" => doc! { "v": { "$meta": "recordId" } },
        _ => doc! { "v": { name: 1 } },
    };
    let parsed = Projection::parse(spec.as_raw(), Mode::Find, &mut ParseCx::new());
    parsed.map(|_| ()).map_err(|found| error(&found))
}

fn meta(name: &str) -> Known {
    let spec = doc! { "$meta": name };
    let parsed = Expr::parse(Value::Document(spec.as_raw()), &mut ParseCx::new());
    parsed.map(|_| ()).map_err(|found| error(&found))
}

fn collation(name: &str) -> Known {
    let spec = doc! { "locale": "en" }.with(name, Value::MinKey);
    match Collation::parse(spec.as_raw()) {
        Err(found) if found.code().0 == 40415 => Err(error(&found)),
        _ => Ok(()),
    }
}

/// What a server answers.
struct Asked {
    connection: Connection,
    count: u32,
}

impl Asked {
    /// The code of a command's error; 0 for none.
    fn code(&mut self, command: DocBuf) -> i64 {
        let reply = self.connection.run(&command);
        reply.as_raw().get("code").and_then(|code| code.as_exact_i64()).unwrap_or(0)
    }

    fn unless(&mut self, command: DocBuf, unknown: i64) -> Known {
        if self.code(command) == unknown { Err(format!("error {unknown}")) } else { Ok(()) }
    }

    fn collection(&mut self) -> String {
        self.count += 1;
        format!("c{}", self.count)
    }

    fn variable(&mut self, name: &str) -> Known {
        let named = format!("$${name}");
        let stage = match name {
            "DESCEND" | "KEEP" | "PRUNE" => doc! { "$redact": &*named },
            _ => doc! { "$project": { "v": &*named } },
        };
        let pipeline = array![&stage];
        let command = doc! { "aggregate": "c" }.with("pipeline", Value::Array(pipeline.as_raw()));
        match self.code(command.with("cursor", &DocBuf::new()).with("$db", "reference")) {
            // Known, and not available on a server that is no member of a set.
            0 | 10071200 => Ok(()),
            code => Err(format!("error {code}")),
        }
    }

    fn index(&mut self, key: &DocBuf, option: Option<&str>) -> i64 {
        let mut index = doc! { "name": "one" }.with("key", key);
        if let Some(option) = option {
            index = if option == "name" {
                doc! { "key": { "v": 1 }, "name": 1 }
            } else {
                index.with(option, 1)
            };
        }
        let indexes = array![&index];
        let command = doc! { "createIndexes": &*self.collection() };
        self.code(command.with("indexes", Value::Array(indexes.as_raw())).with("$db", "reference"))
    }

    fn index_type(&mut self, name: &str) -> Known {
        let key = match name.parse::<i32>() {
            Ok(direction) => doc! { "v": direction },
            Err(_) if name == "$**" => doc! { name: 1 },
            Err(_) => doc! { "v": name },
        };
        match self.index(&key, None) {
            0 => Ok(()),
            code => Err(format!("error {code}")),
        }
    }

    fn index_option(&mut self, name: &str) -> Known {
        match self.index(&doc! { "v": 1 }, Some(name)) {
            197 => Err("error 197".to_owned()),
            _ => Ok(()),
        }
    }

    fn collection_option(&mut self, name: &str) -> Known {
        let command = doc! { "create": &*self.collection() }.with(name, Value::MinKey);
        self.unless(command.with("$db", "reference"), 40415)
    }

    fn time_series_option(&mut self, name: &str) -> Known {
        let options = if name == "timeField" {
            DocBuf::new()
        } else {
            doc! { "timeField": "t" }
        };
        let command = doc! { "create": &*self.collection() };
        self.unless(
            command.with("timeseries", &options.with(name, Value::MinKey)).with("$db", "reference"),
            40415,
        )
    }

    fn cluster_parameter(&mut self, name: &str) -> Known {
        self.unless(doc! { "getClusterParameter": name, "$db": "admin" }, 72)
    }

    fn known(&mut self, probe: &str, name: &str) -> Known {
        match probe {
            "query" => query(name),
            "shape" => shape(name),
            "projection" => projection(name),
            "update" => of_update(&DocBuf::new().with(name, &doc! { "v": 1 }), &["Unknown modifier"]),
            "modifier" => {
                let each = doc! { "$each": [1] };
                let each = if name == "$each" { each } else { each.with(name, 1) };
                of_update(
                    &DocBuf::new().with("$push", &DocBuf::new().with("v", &each)),
                    &["Unrecognized clause"],
                )
            }
            "place" => place(name),
            "update stage" => update_stage(name),
            "stage" => listed(name, STAGES.iter().map(|stage| stage.name), 40324),
            "expression" => listed(name, sheaf_expr::operator_names(), 168),
            "accumulator" => listed(name, ACCUMULATORS.iter().map(|accumulator| accumulator.name), 15952),
            "window" => listed(name, window_functions(), 9),
            "variable" => self.variable(name),
            "meta" => meta(name),
            "command" => listed(name, commands(), 59),
            "index type" => self.index_type(name),
            "index option" => self.index_option(name),
            "collection option" => self.collection_option(name),
            "collation option" => collation(name),
            "time series option" => self.time_series_option(name),
            "cluster parameter" => self.cluster_parameter(name),
            "parameter" => listed(name, Parameters::names().map(|(name, ..)| name), 72),
            _ => panic!("{probe}: {name}"),
        }
    }
}

/// The commands of servers, and those of routers.
fn commands() -> impl Iterator<Item = &'static str> {
    let servers = TABLE.all();
    let servers =
        servers.flat_map(|command| std::iter::once(command.name).chain(command.spec.aliases.iter().copied()));
    servers.chain(sheaf_router::command_names())
}

/// What the code's tables have; of what is read by parsers there are none.
fn others(probe: &str) -> Vec<String> {
    let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
    owned(match probe {
        "stage" => STAGES.iter().map(|stage| stage.name).collect(),
        "expression" => sheaf_expr::operator_names().collect(),
        "accumulator" => ACCUMULATORS.iter().map(|accumulator| accumulator.name).collect(),
        "window" => window_functions().collect(),
        "command" => commands().collect::<BTreeSet<_>>().into_iter().collect(),
        "parameter" => Parameters::names().map(|(name, ..)| name).collect(),
        _ => Vec::new(),
    })
}

#[test]
fn reference_is_what_the_page_says() {
    let server = Server::start(|_, _| {});
    let mut asked = Asked { connection: server.connect(), count: 0 };
    let table = include_str!("../reference/manual.txt");
    page::check(("../../docs/reference.md", HEAD, table), |probe, name| asked.known(probe, name), others);
}
