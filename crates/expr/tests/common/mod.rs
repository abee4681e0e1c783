//! Shell notation for values in scripts: `{a: 1, b: NumberLong(2), c: ISODate("2024-01-01T00:00:00Z")}`.

use sheaf_bson::{ArrayBuf, Binary, DocBuf, ObjectId, OwnedValue, Regex, Timestamp, Value};

/// Reads one value from the front of `text`; gives it and the rest.
pub fn read(text: &str) -> (OwnedValue, &str) {
    let mut reader = Reader { rest: text };
    let value = reader.value();
    (value, reader.rest)
}

struct Reader<'t> {
    rest: &'t str,
}

impl<'t> Reader<'t> {
    fn skip(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn eat(&mut self, wanted: &str) -> bool {
        self.skip();
        match self.rest.strip_prefix(wanted) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, wanted: &str) {
        assert!(self.eat(wanted), "expected {wanted:?} at {:?}", self.rest);
    }

    fn value(&mut self) -> OwnedValue {
        self.skip();
        match self.rest.chars().next().expect("a value") {
            '{' => self.document(),
            '[' => self.array(),
            '"' => OwnedValue::from(Value::String(&self.string())),
            '/' => self.regex(),
            c if c == '-' || c.is_ascii_digit() => self.number(),
            _ => self.word(),
        }
    }

    fn document(&mut self) -> OwnedValue {
        self.expect("{");
        let mut doc = DocBuf::new();
        while !self.eat("}") {
            let key = if self.eat("\"") {
                self.rest = &self.rest[0..];
                self.string_tail()
            } else {
                self.run(|c| c.is_alphanumeric() || "$_.".contains(c)).to_owned()
            };
            self.expect(":");
            let value = self.value();
            doc.append(&key, value.as_value());
            self.eat(",");
        }
        OwnedValue::from(Value::Document(doc.as_raw()))
    }

    fn array(&mut self) -> OwnedValue {
        self.expect("[");
        let mut items = Vec::new();
        while !self.eat("]") {
            items.push(self.value());
            self.eat(",");
        }
        OwnedValue::from(Value::Array(ArrayBuf::of(items.iter().map(|item| item.as_value())).as_raw()))
    }

    fn run(&mut self, kind: impl Fn(char) -> bool) -> &'t str {
        let end = self.rest.find(|c| !kind(c)).unwrap_or(self.rest.len());
        let (run, rest) = self.rest.split_at(end);
        self.rest = rest;
        run
    }

    fn string(&mut self) -> String {
        self.expect("\"");
        self.string_tail()
    }

    fn string_tail(&mut self) -> String {
        let mut out = String::new();
        let mut chars = self.rest.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    self.rest = &self.rest[at + 1..];
                    return out;
                }
                '\\' => match chars.next().expect("an escape").1 {
                    'n' => out.push('\n'),
                    't' => out.push('\t'),
                    '0' => out.push('\0'),
                    'u' => {
                        let code: String = chars.by_ref().take(4).map(|(_, c)| c).collect();
                        let code = u32::from_str_radix(&code, 16).expect("four hex digits");
                        out.push(char::from_u32(code).expect("a character"));
                    }
                    other => out.push(other),
                },
                c => out.push(c),
            }
        }
        panic!("unclosed string at {:?}", self.rest);
    }

    fn regex(&mut self) -> OwnedValue {
        self.expect("/");
        let end = self.rest.find('/').expect("the end of a regular expression");
        let pattern = self.rest[..end].to_owned();
        self.rest = &self.rest[end + 1..];
        let options = self.run(|c| c.is_ascii_alphabetic());
        OwnedValue::from(Value::Regex(Regex { pattern: &pattern, options }))
    }

    fn number(&mut self) -> OwnedValue {
        if self.rest.starts_with("-Infinity") {
            self.rest = &self.rest["-Infinity".len()..];
            return OwnedValue::from(Value::Double(f64::NEG_INFINITY));
        }
        let text = self.run(|c| c.is_ascii_digit() || "+-.eE".contains(c));
        let value = match text.parse::<i32>() {
            Ok(n) => Value::Int32(n),
            Err(_) => Value::Double(text.parse().expect("a number")),
        };
        OwnedValue::from(value)
    }

    /// The arguments of a constructor, as text.
    fn arguments(&mut self) -> Vec<String> {
        self.expect("(");
        let mut out = Vec::new();
        while !self.eat(")") {
            self.skip();
            if self.rest.starts_with('"') {
                out.push(self.string());
            } else {
                out.push(self.run(|c| c != ',' && c != ')').trim().to_owned());
            }
            self.eat(",");
        }
        out
    }

    fn word(&mut self) -> OwnedValue {
        let word = self.run(|c| c.is_ascii_alphanumeric());
        let args = if self.rest.starts_with('(') { self.arguments() } else { Vec::new() };
        let number = |at: usize| args[at].parse::<i64>().expect("an integer");
        let bytes;
        let value = match word {
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            "null" => Value::Null,
            "undefined" => Value::Undefined,
            "MinKey" => Value::MinKey,
            "MaxKey" => Value::MaxKey,
            "NaN" => Value::Double(f64::NAN),
            "Infinity" => Value::Double(f64::INFINITY),
            "NumberLong" => Value::Int64(number(0)),
            "NumberDecimal" => Value::Decimal128(args[0].parse().expect("a decimal")),
            "Date" => Value::DateTime(number(0)),
            "ISODate" => Value::DateTime(iso_millis(&args[0])),
            "Timestamp" => Value::Timestamp(Timestamp::new(number(0) as u32, number(1) as u32)),
            "ObjectId" => Value::ObjectId(ObjectId(from_hex(&args[0]).try_into().expect("12 bytes"))),
            "Code" => Value::JavaScript(&args[0]),
            "Symbol" => Value::Symbol(&args[0]),
            "HexData" => {
                bytes = from_hex(&args[1]);
                Value::Binary(Binary { subtype: number(0) as u8, bytes: &bytes })
            }
            other => panic!("unknown word {other:?} before {:?}", self.rest),
        };
        OwnedValue::from(value)
    }
}

fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("hex")).collect()
}

/// `2024-01-02T03:04:05.006Z`, by jiff and not by the code under test.
fn iso_millis(text: &str) -> i64 {
    text.parse::<jiff::Timestamp>().expect("an ISO date").as_millisecond()
}

/// Prints a value in the notation that [`read`] takes.
pub fn show(value: Value<'_>) -> String {
    match value {
        Value::Missing => "missing".to_owned(),
        Value::MinKey => "MinKey".to_owned(),
        Value::MaxKey => "MaxKey".to_owned(),
        Value::Undefined => "undefined".to_owned(),
        Value::Null => "null".to_owned(),
        Value::Int32(n) => n.to_string(),
        Value::Int64(n) => format!("NumberLong({n})"),
        Value::Double(n) if n.is_nan() => "NaN".to_owned(),
        Value::Double(n) if n.is_infinite() => if n > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
        Value::Double(n) => format!("{n:?}"),
        Value::Decimal128(n) => format!("NumberDecimal(\"{n}\")"),
        Value::String(text) => format!("{text:?}"),
        Value::Bool(b) => b.to_string(),
        Value::Document(doc) => {
            let fields: Vec<_> =
                doc.iter().map(|e| format!("{}: {}", show_key(e.key()), show(e.value()))).collect();
            format!("{{{}}}", fields.join(", "))
        }
        Value::Array(array) => format!("[{}]", array.values().map(show).collect::<Vec<_>>().join(", ")),
        Value::DateTime(millis) => match jiff::Timestamp::from_millisecond(millis) {
            Ok(time) => format!("ISODate(\"{time:.3}\")"),
            Err(_) => format!("Date({millis})"),
        },
        Value::Timestamp(time) => format!("Timestamp({}, {})", time.seconds(), time.increment()),
        Value::ObjectId(id) => format!("ObjectId(\"{}\")", to_hex(&id.0)),
        Value::Binary(binary) => format!("HexData({}, \"{}\")", binary.subtype, to_hex(binary.bytes)),
        Value::Regex(regex) => format!("/{}/{}", regex.pattern, regex.options),
        other => format!("{other:?}"),
    }
}

fn show_key(key: &str) -> String {
    let plain = !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || "$_.".contains(c));
    if plain { key.to_owned() } else { format!("{key:?}") }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
