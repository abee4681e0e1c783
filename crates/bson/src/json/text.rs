//! Plain JSON: text to a tree.

use crate::validate::MAX_DEPTH;

/// A piece of JSON. Numbers stay text until their type is known; fields keep their order, and
/// repeated ones stay repeated, as BSON allows.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Json {
    Null,
    Bool(bool),
    Number(String),
    String(String),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
}

/// Where the text is no JSON, and why.
pub(super) type Fault = (usize, &'static str);

pub(super) fn parse(text: &str) -> Result<Json, Fault> {
    let mut parser = Parser { text, at: 0 };
    let json = parser.value(2 * MAX_DEPTH)?;
    parser.blanks();
    if parser.at < text.len() { Err(parser.fault("text after the end")) } else { Ok(json) }
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
}

impl Parser<'_> {
    fn fault(&self, what: &'static str) -> Fault {
        (self.at, what)
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Steps over `byte`, after blanks, if it comes next.
    fn take(&mut self, byte: u8) -> bool {
        self.blanks();
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn value(&mut self, depth: usize) -> Result<Json, Fault> {
        if depth == 0 {
            return Err(self.fault("nested too deeply"));
        }
        self.blanks();
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => self.string().map(Json::String),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => {
                for (word, json) in
                    [("null", Json::Null), ("true", Json::Bool(true)), ("false", Json::Bool(false))]
                {
                    if self.text[self.at..].starts_with(word) {
                        self.at += word.len();
                        return Ok(json);
                    }
                }
                Err(self.fault("a value was expected"))
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Json, Fault> {
        self.at += 1;
        let mut fields = Vec::new();
        if self.take(b'}') {
            return Ok(Json::Object(fields));
        }
        loop {
            self.blanks();
            let name = self.string()?;
            if !self.take(b':') {
                return Err(self.fault("':' was expected"));
            }
            fields.push((name, self.value(depth - 1)?));
            if self.take(b'}') {
                return Ok(Json::Object(fields));
            }
            if !self.take(b',') {
                return Err(self.fault("',' or '}' was expected"));
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Json, Fault> {
        self.at += 1;
        let mut items = Vec::new();
        if self.take(b']') {
            return Ok(Json::Array(items));
        }
        loop {
            items.push(self.value(depth - 1)?);
            if self.take(b']') {
                return Ok(Json::Array(items));
            }
            if !self.take(b',') {
                return Err(self.fault("',' or ']' was expected"));
            }
        }
    }

    fn number(&mut self) -> Result<Json, Fault> {
        let start = self.at;
        while matches!(self.peek(), Some(b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9')) {
            self.at += 1;
        }
        let text = &self.text[start..self.at];
        let whole = text.strip_prefix('-').unwrap_or(text);
        let leading_zero = whole.len() > 1 && whole.starts_with('0') && whole.as_bytes()[1].is_ascii_digit();
        let shaped = whole.starts_with(|first: char| first.is_ascii_digit())
            && !whole.contains(".e")
            && !whole.contains(".E");
        if leading_zero || !shaped || whole.ends_with('.') || text.parse::<f64>().is_err() {
            return Err((start, "malformed number"));
        }
        Ok(Json::Number(text.to_owned()))
    }

    fn string(&mut self) -> Result<String, Fault> {
        if self.peek() != Some(b'"') {
            return Err(self.fault("a string was expected"));
        }
        self.at += 1;
        let mut out = String::new();
        loop {
            let rest = &self.text[self.at..];
            let plain = rest.find(|c| matches!(c, '"' | '\\' | '\0'..='\u{1F}')).unwrap_or(rest.len());
            out.push_str(&rest[..plain]);
            self.at += plain;
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => {
                    self.at += 1;
                    out.push(self.escape()?);
                }
                _ => return Err(self.fault("string is not closed")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, Fault> {
        let letter = self.peek().ok_or(self.fault("string is not closed"))?;
        self.at += 1;
        Ok(match letter {
            b'"' | b'\\' | b'/' => letter as char,
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'b' => '\u{8}',
            b'f' => '\u{C}',
            b'u' => {
                let first = self.unit()?;
                let paired = (0xD800..0xDC00).contains(&first) && self.text[self.at..].starts_with("\\u");
                let code = if paired {
                    self.at += 2;
                    match self.unit()? {
                        second @ 0xDC00..0xE000 => 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00),
                        _ => first,
                    }
                } else {
                    first
                };
                char::from_u32(code).ok_or(self.fault("half of a surrogate pair"))?
            }
            _ => return Err(self.fault("unknown escape")),
        })
    }

    /// Four hexadecimal digits.
    fn unit(&mut self) -> Result<u32, Fault> {
        let digits = self.text.get(self.at..self.at + 4).filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
        let unit = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        self.at += 4;
        unit.ok_or((self.at - 4, "four hexadecimal digits were expected"))
    }
}
