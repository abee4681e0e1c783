//! What clients send as code: a function, an expression, or statements.

/// The texts to try, one after another, until one can be parsed; each is an expression whose value is a function.
///
/// As in MongoDB, code need not be a function: `this.a > 1` is the body of one that returns it, `var x = 1; return x` is a body.
pub(crate) fn forms(code: &str) -> [String; 3] {
    let bare = code.trim().trim_end_matches(|c: char| c == ';' || c.is_whitespace());
    [
        // A line break behind it: the code may end with a comment.
        format!("(made => typeof made === 'function' ? made : undefined)(\n{bare}\n)"),
        format!("(function () {{ return (\n{bare}\n); }})"),
        format!("(function () {{\n{code}\n}})"),
    ]
}

/// Whether the code looks like a function itself, so that evaluating it makes a function and does nothing else.
pub(crate) fn is_function(code: &str) -> bool {
    let code = without_comments(code);
    if let Some(rest) = code.strip_prefix("function").or_else(|| code.strip_prefix("async function")) {
        return !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$');
    }
    let Some(arrow) = code.find("=>") else { return false };
    let head = code[..arrow].trim();
    match head.strip_prefix('(') {
        Some(names) => names.ends_with(')') && !names[..names.len() - 1].contains('('),
        None => !head.is_empty() && head.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '$'),
    }
}

/// The code from its first word on.
fn without_comments(mut code: &str) -> &str {
    loop {
        code = code.trim_start();
        let end = match code.as_bytes() {
            [b'/', b'/', ..] => code.find('\n'),
            [b'/', b'*', ..] => code.find("*/").map(|at| at + 1),
            _ => return code,
        };
        let Some(end) = end else { return "" };
        code = &code[end + 1..];
    }
}

#[cfg(test)]
mod tests {
    use super::is_function;

    #[test]
    fn functions_are_told_from_other_code() {
        for code in [
            "function() {}",
            "function f(a) { return a }",
            " // c\n function () {}",
            "/* c */ x => x",
            "(a, b) => a",
            "() => 1",
        ] {
            assert!(is_function(code), "{code}");
        }
        for code in ["this.a > 1", "functional(1)", "return 1", "[1].map(x => x)", "f(x => 1)", ""] {
            assert!(!is_function(code), "{code}");
        }
    }
}
