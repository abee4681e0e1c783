//! Documents as they are written in a shell, which MongoDB's options take: names without quotes, single quotes, `/patterns/`.

/// The same as JSON. What is neither stays as it is, for the parser to refuse.
pub fn to_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    // The last character that was no white space: it says whether a name or a value follows.
    let mut before = '\0';
    while let Some(c) = rest.chars().next() {
        let taken = match c {
            '"' | '\'' => quoted(rest, c).map(|(inner, length)| {
                put_string(&mut out, inner, c);
                length
            }),
            '/' if matches!(before, ':' | ',' | '[') => quoted(rest, '/').map(|(pattern, length)| {
                let options: String = rest[length..].chars().take_while(char::is_ascii_lowercase).collect();
                out.push_str("{\"$regularExpression\":{\"pattern\":\"");
                // A backslash is the pattern's own, unless it is before a slash.
                out.push_str(&pattern.replace("\\/", "/").replace('\\', "\\\\").replace('"', "\\\""));
                out.push_str("\",\"options\":\"");
                out.push_str(&options);
                out.push_str("\"}}");
                length + options.len()
            }),
            c if (c.is_alphabetic() || matches!(c, '_' | '$')) && matches!(before, '{' | ',') => {
                let end = rest.find(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '$')));
                let (name, behind) = rest.split_at(end.unwrap_or(rest.len()));
                behind.trim_start().starts_with(':').then(|| {
                    put_string(&mut out, name, '"');
                    name.len()
                })
            }
            _ => None,
        };
        let length = taken.unwrap_or_else(|| {
            out.push(c);
            c.len_utf8()
        });
        if !c.is_whitespace() {
            before = rest[..length].chars().next_back().unwrap_or(c);
        }
        rest = &rest[length..];
    }
    out
}

/// What stands between a text's first character and the next that is the same and not behind a backslash; the length of all.
fn quoted(text: &str, quote: char) -> Option<(&str, usize)> {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return Some((&text[1..at], at + 1)),
            _ => {}
        }
    }
    None
}

fn put_string(out: &mut String, inner: &str, quote: char) {
    out.push('"');
    match quote {
        '"' => out.push_str(inner),
        _ => out.push_str(&inner.replace("\\'", "'").replace('"', "\\\"")),
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use sheaf_bson::json;

    use super::*;

    #[test]
    fn what_manuals_write_is_understood() {
        for (text, expected) in [
            (
                "{ atype: { $in: [ \"createCollection\", 'drop\"x' ] } }",
                r#"{"atype":{"$in":["createCollection","drop\"x"]}}"#,
            ),
            (
                r#"{ "param.ns": /^test\.a\/"b/i, 'users': [] }"#,
                r#"{"param.ns":{"$regularExpression":{"pattern":"^test\\.a/\"b","options":"i"}},"users":[]}"#,
            ),
            (
                r#"{ $or: [ { atype: /x:{y/ }, {n: true, m:null} ], "a:b": 'it\'s' }"#,
                r#"{"$or":[{"atype":{"$regularExpression":{"pattern":"x:{y","options":""}}},{"n":true,"m":null}],"a:b":"it's"}"#,
            ),
        ] {
            let read = |text: &str| json::parse_document(text).unwrap();
            assert_eq!(read(&to_json(text)), read(expected), "{}", to_json(text));
        }
    }

    #[test]
    fn what_is_json_stays_as_it_is_and_what_is_nothing_fails() {
        for text in [
            r#"{"a/b": "c'd \" e: f, {g", "h": [1, -2.5e3, {"$oid": "656565656565656565656565"}]}"#,
            "{}",
            "{\"a\":\"ü\"}",
        ] {
            assert_eq!(to_json(text), text);
        }
        for text in ["{a", "{'a: 1}", "{a: /x}", "{a b: 1}", "{a: b}", "", "/x/", "{a: 'x' y: 1}"] {
            assert!(json::parse_document(&to_json(text)).is_err(), "{text}");
        }
    }
}
