//! What `transformIdentifiers` makes of the key of an entry: names that are an application's own have a keyed hash in their place.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sheaf_auth::Mechanism;
use sheaf_bson::{ArrayBuf, DocBuf, DocWriter, RawDoc, Value};

/// The key with which names are hashed.
#[derive(Clone, Copy)]
pub(super) struct Secret<'s>(pub &'s [u8]);

/// Variables that are no client's.
const SYSTEM_VARIABLES: [&str; 10] = [
    "CLUSTER_TIME",
    "CURRENT",
    "DESCEND",
    "KEEP",
    "NOW",
    "PRUNE",
    "REMOVE",
    "ROOT",
    "SEARCH_META",
    "USER_ROLES",
];

/// Stages whose own fields are names of a client's fields; those of others are options.
const OF_FIELDS: [&str; 7] = ["$addFields", "$facet", "$group", "$match", "$project", "$set", "$sort"];

/// Options of stages whose fields are names of a client's fields or variables.
const OPTIONS_OF_FIELDS: [&str; 5] = ["let", "query", "restrictSearchWithMatch", "sort", "sortBy"];

/// Options whose texts are words of the language.
const WORDS: [&str; 7] =
    ["$meta", "granularity", "method", "unit", "whenMatched", "whenNotMatched", "distanceMetric"];

/// Names of operators' arguments.
#[rustfmt::skip]
const ARGUMENTS: &[&str] = &[
    "amount", "arrayIndexAs", "as", "base", "binSize", "branches", "case", "chars", "cond", "date", "dateString", "day", "default",
    "defaults", "else", "endDate", "field", "find", "format", "hour", "if", "in", "initialValue", "input", "inputs", "iso8601",
    "isoDayOfWeek", "isoWeek", "isoWeekYear", "limit", "method", "millisecond", "minute", "month", "n", "onError", "onNull", "options",
    "output", "p", "regex", "replacement", "second", "sortBy", "startDate", "startOfWeek", "then", "timezone", "to", "unit",
    "useLongestLength", "value", "year",
];

impl Secret<'_> {
    /// The key of an entry, or its shape, without names in clear.
    pub(super) fn transformed(self, document: RawDoc<'_>) -> DocBuf {
        DocBuf::build(|out| {
            for field in document.iter() {
                let (name, value) = (field.key(), field.value());
                match (name, value) {
                    ("cmdNs", Value::Document(namespace)) => {
                        let mut inner = out.document("cmdNs");
                        for part in namespace.iter() {
                            inner.append(part.key(), &self.hashed(part.value().as_str().unwrap_or("")));
                        }
                    }
                    ("client", Value::Document(client)) => {
                        let application =
                            client.get("application").and_then(|part| part.as_doc()?.get("name")?.as_str());
                        let name = self.hashed(application.unwrap_or(""));
                        out.document("client").document("application").append("name", &name);
                    }
                    ("queryShape", Value::Document(shape)) => {
                        _ = out.append("queryShape", &self.transformed(shape));
                    }
                    (
                        "filter" | "query" | "sort" | "projection" | "min" | "max" | "let" | "hint",
                        Value::Document(part),
                    ) => _ = out.append(name, &self.names(part)),
                    ("hint" | "key", Value::String(path)) => _ = out.append(name, &self.path(path)),
                    ("pipeline", Value::Array(stages)) => _ = out.append(name, &self.pipeline(stages)),
                    _ => _ = out.append_element(field),
                }
            }
        })
    }

    fn hashed(self, name: &str) -> String {
        STANDARD.encode(Mechanism::Sha256.hmac(self.0, name.as_bytes()))
    }

    fn path(self, path: &str) -> String {
        path.split('.').map(|part| self.hashed(part)).collect::<Vec<_>>().join(".")
    }

    fn pipeline(self, stages: RawDoc<'_>) -> ArrayBuf {
        ArrayBuf::build(|out| {
            for stage in stages.values().filter_map(|stage| stage.as_doc()?.iter().next()) {
                out.push(&self.stage(stage.key(), stage.value()));
            }
        })
    }

    fn stage(self, name: &str, argument: Value<'_>) -> DocBuf {
        let Value::Document(fields) = argument else {
            return DocBuf::build(|out| self.put(out, name, argument));
        };
        DocBuf::build(|out| {
            let mut stage = out.document(name);
            for field in fields.iter() {
                let (option, value) = (field.key(), field.value());
                let is_name = OF_FIELDS.contains(&name) && !(name == "$group" && option == "_id");
                match (option, value) {
                    _ if option.starts_with('$') => self.put(&mut stage, option, value),
                    (facet, Value::Array(stages)) if name == "$facet" => {
                        stage.append(&self.hashed(facet), &self.pipeline(stages));
                    }
                    _ if is_name => self.put(&mut stage, &self.path(option), value),
                    ("pipeline" | "whenMatched", Value::Array(stages)) => {
                        stage.append(option, &self.pipeline(stages));
                    }
                    ("into" | "timeseries", Value::Document(place)) => {
                        self.put_options(&mut stage, option, place)
                    }
                    (option, value) => self.put_option(&mut stage, option, value),
                }
            }
        })
    }

    /// An option of a stage: its own name stays.
    fn put_option(self, out: &mut DocWriter<'_, Vec<u8>>, option: &str, value: Value<'_>) {
        match value {
            Value::String(_) if WORDS.contains(&option) => _ = out.append(option, value),
            Value::Document(inner) if OPTIONS_OF_FIELDS.contains(&option) => {
                _ = out.append(option, &self.names(inner));
            }
            Value::Document(fields) if option == "output" => {
                let mut inner = out.document(option);
                for field in fields.iter() {
                    match field.value() {
                        Value::Document(how) => {
                            _ = inner.append(&self.path(field.key()), &self.arguments(how))
                        }
                        value => self.put(&mut inner, &self.path(field.key()), value),
                    }
                }
            }
            Value::Document(inner) if option == "range" => self.put_options(out, option, inner),
            value => self.put(out, option, value),
        }
    }

    fn put_options(self, out: &mut DocWriter<'_, Vec<u8>>, name: &str, options: RawDoc<'_>) {
        let mut inner = out.document(name);
        options.iter().for_each(|field| self.put_option(&mut inner, field.key(), field.value()));
    }

    /// The document with all names in it hashed; those of operators stay.
    pub(super) fn names(self, document: RawDoc<'_>) -> DocBuf {
        DocBuf::build(|out| {
            for field in document.iter() {
                match field.key() {
                    operator if operator.starts_with('$') => self.put_operator(out, operator, field.value()),
                    name => self.put(out, &self.path(name), field.value()),
                }
            }
        })
    }

    /// An operator: the names of its arguments stay, as far as they are no fields that it looks at.
    fn put_operator(self, out: &mut DocWriter<'_, Vec<u8>>, operator: &str, argument: Value<'_>) {
        match argument {
            Value::String(_) if WORDS.contains(&operator) => _ = out.append(operator, argument),
            Value::Document(arguments) if !matches!(operator, "$elemMatch" | "$not" | "$mergeObjects") => {
                out.append(operator, &self.arguments(arguments));
            }
            argument => self.put(out, operator, argument),
        }
    }

    fn arguments(self, arguments: RawDoc<'_>) -> DocBuf {
        DocBuf::build(|out| {
            for field in arguments.iter() {
                let (name, value) = (field.key(), field.value());
                match (name, value) {
                    ("vars", Value::Document(variables)) => _ = out.append(name, &self.names(variables)),
                    ("branches", Value::Array(branches)) => {
                        let mut list = out.array(name);
                        branches
                            .values()
                            .filter_map(|branch| branch.as_doc())
                            .for_each(|branch| _ = list.push(&self.arguments(branch)));
                    }
                    ("window", Value::Document(window)) => self.put_options(out, name, window),
                    (word, Value::String(_)) if WORDS.contains(&word) => _ = out.append(name, value),
                    _ if name.starts_with('$') => self.put_operator(out, name, value),
                    _ if ARGUMENTS.contains(&name) => self.put(out, name, value),
                    _ => self.put(out, &self.path(name), value),
                }
            }
        })
    }

    fn put(self, out: &mut DocWriter<'_, Vec<u8>>, name: &str, value: Value<'_>) {
        match value {
            Value::Document(inner) => _ = out.append(name, &self.names(inner)),
            Value::Array(items) => {
                let mut list = out.array(name);
                for item in items.values() {
                    let one = DocBuf::build(|one| self.put(one, "0", item));
                    list.push(one.as_raw().get_or_missing("0"));
                }
            }
            // What stands for a constant tells nothing; all other texts are names and paths.
            Value::String(text) if text.starts_with('?') || text == "[]" => _ = out.append(name, text),
            Value::String(text) => {
                let hashed = match (text.strip_prefix("$$"), text.strip_prefix('$')) {
                    (Some(variable), _) => format!("$${}", self.variable(variable)),
                    (None, Some(path)) => format!("${}", self.path(path)),
                    (None, None) => self.path(text),
                };
                out.append(name, &hashed);
            }
            other => _ = out.append(name, other),
        }
    }

    /// A variable and a path in it.
    fn variable(self, text: &str) -> String {
        let (variable, path) =
            text.split_once('.').map_or((text, None), |(variable, path)| (variable, Some(path)));
        let variable = match SYSTEM_VARIABLES.contains(&variable) {
            true => variable.to_owned(),
            false => self.hashed(variable),
        };
        match path {
            Some(path) => format!("{variable}.{}", self.path(path)),
            None => variable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheaf_bson::doc;

    fn hash(name: &str) -> String {
        Secret(b"key").hashed(name)
    }

    #[test]
    fn names_are_hashed_as_mongodb_hashes_them() {
        let secret = STANDARD.decode("MjM0NTY3ODkxMDExMTIxMzE0MTUxNjE3MTgxOTIwMjE=").expect("a key");
        let hashed = Secret(&secret).names(doc! { "v": { "$eq": "?number" } }.as_raw());
        assert_eq!(hashed, doc! { "lU7Z0mLRPRUL+RfAD5jhYPRRpXBsZBxS/20EzDwfOG4=": { "$eq": "?number" } });
    }

    #[test]
    fn no_name_stays_in_clear() {
        let pipeline = doc! { "pipeline": [
            { "$match": { "own.a": { "$elemMatch": { "own": "?number" } } } },
            { "$facet": { "own": [{ "$group": { "_id": "$own", "own": { "$sum": "$own.own" } } }] } },
            { "$lookup": { "from": "own", "as": "own", "let": { "own": "$own" }, "pipeline": [
                { "$match": { "$expr": { "$eq": ["$$own.own", "$$ROOT.own"] } } },
                { "$unwind": { "path": "$own" } },
            ] } },
            { "$project": { "own": { "$let": { "vars": { "own": "?number" }, "in": "$$own" } }, "_id": false } },
            { "$setWindowFields": { "partitionBy": "$own", "sortBy": { "own": 1 }, "output": { "own": {
                "$sum": "$own", "window": { "range": "?array<?number>" } } } } },
            { "$merge": { "into": { "db": "own", "coll": "own" }, "whenMatched": "replace" } },
        ], "hint": "own" };
        let hashed = Secret(b"key").transformed(pipeline.as_raw());
        let shown = sheaf_bson::document_text(hashed.as_raw());
        assert!(!shown.contains("own"), "{shown}");
        for kept in ["$$ROOT.", "\"in\"", "vars", "whenMatched: \"replace\"", "coll", "pipeline"] {
            assert!(shown.contains(kept.trim_matches('"')), "{kept} in {shown}");
        }
        assert!(shown.contains(&format!("$${}.{}", hash("own"), hash("own"))), "{shown}");
    }
}
