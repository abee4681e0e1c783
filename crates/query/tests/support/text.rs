//! Documents as text, for scripts: `{a: 1, b: [NumberLong(2), "x"], "c.d": null}`.
//!
//! Numbers without a point are int32 if they fit, else int64; with one they are doubles.

use sheaf_bson::{Binary, Decimal128, DocBuf, ObjectId, OwnedValue, RawDoc, Timestamp, Value};

/// Reads one value.
pub fn parse(text: &str) -> OwnedValue {
    let mut reader = Reader { rest: text };
    let value = reader.value();
    assert!(reader.rest.trim().is_empty(), "text after the value: {}", reader.rest);
    value
}

/// Reads one document.
pub fn parse_doc(text: &str) -> DocBuf {
    match parse(text).as_value() {
        Value::Document(doc) => DocBuf::from(doc),
        other => panic!("not a document: {other:?}"),
    }
}

struct Reader<'t> {
    rest: &'t str,
}

impl<'t> Reader<'t> {
    fn eat(&mut self, token: &str) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, token: &str) {
        assert!(self.eat(token), "expected {token} at: {}", self.rest);
    }

    fn word(&mut self) -> &'t str {
        self.rest = self.rest.trim_start();
        let end = self
            .rest
            .find(|c: char| !(c.is_alphanumeric() || "_$.+-".contains(c)))
            .unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn quoted(&mut self) -> String {
        self.expect("\"");
        let mut text = String::new();
        let mut chars = self.rest.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    self.rest = &self.rest[at + 1..];
                    return text;
                }
                '\\' => text.push(match chars.next().map(|(_, c)| c) {
                    Some('n') => '\n',
                    Some('0') => '\0',
                    Some(c) => c,
                    None => '\\',
                }),
                c => text.push(c),
            }
        }
        panic!("unterminated string")
    }

    fn value(&mut self) -> OwnedValue {
        self.rest = self.rest.trim_start();
        match self.rest.chars().next() {
            Some('{') => OwnedValue::from(Value::Document(self.document().as_raw())),
            Some('[') => self.array(),
            Some('"') => OwnedValue::from(Value::String(&self.quoted())),
            Some('/') => self.regex(),
            _ => self.scalar(),
        }
    }

    fn document(&mut self) -> DocBuf {
        self.expect("{");
        let mut doc = DocBuf::new();
        while !self.eat("}") {
            self.rest = self.rest.trim_start();
            let key = if self.rest.starts_with('"') { self.quoted() } else { self.word().to_owned() };
            self.expect(":");
            let value = self.value();
            doc.append(&key, value.as_value());
            self.eat(",");
        }
        doc
    }

    fn array(&mut self) -> OwnedValue {
        self.expect("[");
        let mut items = Vec::new();
        while !self.eat("]") {
            items.push(self.value());
            self.eat(",");
        }
        let array = sheaf_bson::ArrayBuf::of(items.iter().map(OwnedValue::as_value));
        OwnedValue::from(Value::Array(array.as_raw()))
    }

    fn regex(&mut self) -> OwnedValue {
        self.expect("/");
        let end = self.rest.find('/').expect("end of a regular expression");
        let pattern = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        let options = if self.rest.starts_with(char::is_alphabetic) { self.word() } else { "" };
        OwnedValue::from(Value::Regex(sheaf_bson::Regex { pattern, options }))
    }

    fn scalar(&mut self) -> OwnedValue {
        let word = self.word();
        let value = match word {
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            "null" => Value::Null,
            "undefined" => Value::Undefined,
            "MinKey" => Value::MinKey,
            "MaxKey" => Value::MaxKey,
            "NaN" => Value::Double(f64::NAN),
            "Infinity" => Value::Double(f64::INFINITY),
            "-Infinity" => Value::Double(f64::NEG_INFINITY),
            "NumberLong" | "Long" | "NumberDecimal" | "Decimal" | "ISODate" | "Date" | "Timestamp"
            | "ObjectId" | "UUID" => {
                return self.call(word);
            }
            number if number.contains(['.', 'e']) => Value::Double(number.parse().expect("a double")),
            number => {
                let n: i64 = number.parse().unwrap_or_else(|_| panic!("not a value: {number}{}", self.rest));
                i32::try_from(n).map_or(Value::Int64(n), Value::Int32)
            }
        };
        OwnedValue::from(value)
    }

    fn call(&mut self, name: &str) -> OwnedValue {
        self.expect("(");
        let end = self.rest.find(')').expect("a closing parenthesis");
        let argument = self.rest[..end].trim().trim_matches('"');
        self.rest = &self.rest[end + 1..];
        OwnedValue::from(match name {
            "NumberLong" | "Long" => Value::Int64(argument.parse().expect("an integer")),
            "NumberDecimal" | "Decimal" => {
                Value::Decimal128(argument.parse::<Decimal128>().expect("a decimal"))
            }
            "ISODate" | "Date" => Value::DateTime(argument.parse().expect("milliseconds")),
            "Timestamp" => {
                let (seconds, increment) = argument.split_once(',').expect("two numbers");
                Value::Timestamp(Timestamp::new(
                    seconds.trim().parse().unwrap(),
                    increment.trim().parse().unwrap(),
                ))
            }
            "UUID" => return uuid(argument),
            _ => {
                let mut id = [0; 12];
                for (at, byte) in id.iter_mut().enumerate() {
                    *byte = u8::from_str_radix(&argument[2 * at..2 * at + 2], 16).expect("hex digits");
                }
                Value::ObjectId(ObjectId(id))
            }
        })
    }
}

/// The UUID whose sixteen bytes are all this number.
fn uuid(byte: &str) -> OwnedValue {
    let bytes = [byte.parse().expect("one byte, of which a UUID has sixteen"); 16];
    OwnedValue::from(Value::Binary(Binary { subtype: 4, bytes: &bytes }))
}

/// Prints a document on one line, types told apart.
pub fn show(doc: RawDoc<'_>) -> String {
    show_value(Value::Document(doc))
}

/// Prints a value.
pub fn show_value(value: Value<'_>) -> String {
    match value {
        Value::Int64(n) => format!("NumberLong({n})"),
        Value::Double(n) if n.is_nan() => "NaN".into(),
        Value::Double(n) if n.is_infinite() => if n > 0.0 { "Infinity" } else { "-Infinity" }.into(),
        Value::Double(n) => format!("{n:?}"),
        Value::Decimal128(n) => format!("NumberDecimal(\"{n}\")"),
        Value::Int32(n) => n.to_string(),
        Value::Bool(b) => b.to_string(),
        Value::Null => "null".into(),
        Value::Undefined => "undefined".into(),
        Value::MinKey => "MinKey".into(),
        Value::MaxKey => "MaxKey".into(),
        Value::String(text) => format!("{text:?}"),
        Value::DateTime(ms) => format!("ISODate({ms})"),
        Value::Timestamp(t) => format!("Timestamp({}, {})", t.seconds(), t.increment()),
        Value::ObjectId(id) => {
            let hex: String = id.0.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("ObjectId(\"{hex}\")")
        }
        Value::Regex(regex) => format!("/{}/{}", regex.pattern, regex.options),
        Value::Binary(Binary { subtype: 4, bytes: [first, rest @ ..] })
            if rest.len() == 15 && rest.iter().all(|byte| byte == first) =>
        {
            format!("UUID({first})")
        }
        Value::Document(doc) => {
            let fields: Vec<String> =
                doc.iter().map(|e| format!("{}: {}", show_key(e.key()), show_value(e.value()))).collect();
            format!("{{{}}}", fields.join(", "))
        }
        Value::Array(array) => {
            let items: Vec<String> = array.values().map(show_value).collect();
            format!("[{}]", items.join(", "))
        }
        other => format!("{other:?}"),
    }
}

fn show_key(key: &str) -> String {
    let plain = !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '$');
    if plain { key.to_owned() } else { format!("{key:?}") }
}

/// Runs the scripts of a folder: cases are separated by empty lines; what stands after `---` is what the case
/// must give. With `UPDATE=1` in the environment the files are rewritten instead.
pub fn run_scripts(folder: &str, run: impl Fn(&str) -> String) {
    let update = std::env::var_os("UPDATE").is_some();
    let mut files: Vec<_> = std::fs::read_dir(folder).expect(folder).map(|f| f.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "no scripts in {folder}");
    let mut failures = String::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let mut rewritten = String::new();
        for case in text.split("\n\n").map(str::trim).filter(|case| !case.is_empty()) {
            let (input, expected) = match case.split_once("\n---") {
                Some((input, expected)) => (input, expected.trim()),
                None => (case, ""),
            };
            let is_comment = input.lines().all(|line| line.starts_with('#'));
            let commands: String =
                input.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect();
            let actual = if is_comment { String::new() } else { run(&commands) };
            let actual = actual.trim();
            if actual != expected && !update {
                failures +=
                    &format!("{}:\n{input}\n--- expected\n{expected}\n--- got\n{actual}\n\n", file.display());
            }
            rewritten +=
                &if is_comment { format!("{input}\n\n") } else { format!("{input}\n---\n{actual}\n\n") };
        }
        if update {
            std::fs::write(&file, rewritten.trim_end().to_owned() + "\n").unwrap();
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
}
