//! Code that is done in a moment whatever a client gives it, so that its operation can wait for it on its own thread: handing a call to
//! another one and back costs ten times what most functions do.
//!
//! It is told by its text alone, and what is not surely so is not: no loop, no call but of [`CALLED`] and [`OF_MATH`], no object of its own (an
//! operator would call what it has under `valueOf`, be it a built-in function), nothing assigned but variables of its own, few operators.
//! Each operator takes time by the size of what it is given, which [`SMALL_BYTES`] bounds.

use crate::source::is_function;

/// The longest code that is looked at, in bytes: doubling a text again and again takes some room.
const LONGEST: usize = 300;

/// What brief code may be given, in bytes, all together.
pub(crate) const SMALL_BYTES: usize = 16 << 10;

/// What may be called...
const CALLED: &[&str] = &["emit"];

/// ...and of `Math`, which like every object has functions that change it.
const OF_MATH: &[&str] = &[
    "abs", "ceil", "exp", "floor", "log", "log10", "log2", "max", "min", "pow", "round", "sign", "sqrt",
    "trunc",
];

/// Words of the language with which something could go on for long, or be called unseen.
const REFUSED: &[&str] = &[
    "for", "while", "do", "new", "function", "class", "get", "set", "yield", "async", "await", "with",
    "eval", "import", "super", "static", "of",
];

/// Words behind which a parenthesis calls nothing.
const BEFORE_A_GROUP: &[&str] =
    &["if", "return", "typeof", "in", "else", "case", "void", "delete", "instanceof", "switch"];

/// Whether it is brief.
pub(crate) fn is_brief(code: &str) -> bool {
    let plain = code.len() <= LONGEST && code.is_ascii() && !code.contains(['\\', '`', '/']);
    plain && body(code).is_some_and(|body| body_is_brief(body, is_function(code)))
}

/// What stands behind the names of the arguments, where there are any; `None` if there is more to them than names.
fn body(code: &str) -> Option<&str> {
    if !is_function(code) {
        return Some(code);
    }
    let begins = code.trim_start().starts_with("function");
    let at = if begins { code.find('{')? } else { code.find("=>")? + 2 };
    let head = code[..at].trim_end_matches("=>");
    let names = head.split(|c: char| !is_of_name(c)).filter(|name| !name.is_empty());
    let simple = head.chars().all(|c| is_of_name(c) || c.is_ascii_whitespace() || "(),".contains(c));
    (simple && !names.skip(usize::from(begins)).any(is_called)).then_some(&code[at..])
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '$'
}

fn is_called(name: &str) -> bool {
    name == "Math" || CALLED.contains(&name) || REFUSED.contains(&name)
}

/// A piece of code, as far as it matters.
#[derive(Clone, Copy, PartialEq)]
enum Piece<'c> {
    Word(&'c str),
    Number,
    Text,
    Sign(char),
}

/// Whether a function's body is brief, or code that is an expression or statements.
fn body_is_brief(body: &str, of_function: bool) -> bool {
    let Some(pieces) = pieces(body) else { return false };
    // Behind the last there are none.
    let at = |index: usize| pieces.get(index).copied().unwrap_or(Piece::Sign(';'));
    let behind = |index: usize, back: usize| index.checked_sub(back).map_or(Piece::Sign(';'), at);
    (0..pieces.len()).all(|index| match at(index) {
        Piece::Word(word) => {
            let declared = matches!(behind(index, 1), Piece::Word("var" | "let" | "const"));
            !(REFUSED.contains(&word) || declared && is_called(word))
        }
        Piece::Sign('(') => match behind(index, 1) {
            Piece::Word(word) if BEFORE_A_GROUP.contains(&word) => true,
            Piece::Word(word) if behind(index, 2) == Piece::Sign('.') => {
                let of_math = behind(index, 3) == Piece::Word("Math") && behind(index, 4) != Piece::Sign('.');
                of_math && OF_MATH.contains(&word)
            }
            Piece::Word(word) => CALLED.contains(&word),
            Piece::Sign(sign) => !")]}.".contains(sign),
            Piece::Number | Piece::Text => false,
        },
        // A block, not an object.
        Piece::Sign('{') => {
            (index == 0 && of_function) || matches!(behind(index, 1), Piece::Sign(')') | Piece::Word("else"))
        }
        // Comparisons are no assignments; a variable's first value is none that anybody else sees.
        Piece::Sign('=') => {
            let compares = matches!(behind(index, 1), Piece::Sign('=' | '!' | '<' | '>'))
                || at(index + 1) == Piece::Sign('=');
            let declares = matches!(behind(index, 2), Piece::Word("var" | "let" | "const"));
            at(index + 1) != Piece::Sign('>') && (compares || declares)
        }
        // A list that is spread out can be doubled, as a text can, but it is slower.
        Piece::Sign('.') => at(index + 1) != Piece::Sign('.'),
        // `>>=` and its like assign.
        Piece::Sign('<' | '>') if at(index + 1) == at(index) => false,
        Piece::Sign('+' | '-') => at(index + 1) != at(index),
        Piece::Number | Piece::Text | Piece::Sign(_) => true,
    })
}

/// The pieces of code; `None` if it has something that is not to be judged here.
fn pieces(mut code: &str) -> Option<Vec<Piece<'_>>> {
    let mut pieces = Vec::new();
    while let Some(first) = code.chars().next() {
        let word = code.find(|c: char| !is_of_name(c)).unwrap_or(code.len());
        let length = if first.is_ascii_digit() {
            // The letter makes a number that can be as long as memory.
            (!code[..word].contains('n')).then_some(())?;
            pieces.push(Piece::Number);
            word
        } else if word > 0 {
            pieces.push(Piece::Word(&code[..word]));
            word
        } else if first == '"' || first == '\'' {
            pieces.push(Piece::Text);
            code[1..].find(first)? + 2
        } else {
            if !first.is_ascii_whitespace() {
                pieces.push(Piece::Sign(first));
            }
            1
        };
        code = &code[length..];
    }
    Some(pieces)
}

#[cfg(test)]
mod tests {
    use super::is_brief;

    #[test]
    fn what_takes_its_time_is_told_from_what_does_not() {
        for code in [
            "this.a > 50 && this.b == 3",
            "this.name === 'for (;;) new'",
            "function() { return this.a + this.b }",
            "function(a, b) { if (a) { return (a + b) * 2; } else return typeof (b) }",
            "(a, b) => a != b",
            "x => x + 1",
            "function() { if (this.x > 1) { emit(this.group, [this.x, -1.5]); } else { emit(this.group, 1) } }",
            "var middle = (this.a + this.b) * 2; return middle >= 7 ? Math.max(1, middle) : 0",
            "obj.credits <= 2",
        ] {
            assert!(is_brief(code), "{code}");
        }
        let long = "this.a == 1 || ".repeat(30) + "true";
        for code in [
            "for (;;) this.a.sort()",
            "while (true) { }",
            "this.a.sort()",
            "this.a['sort']()",
            "(this.a.sort)()",
            "this.a.sort\n(1)",
            "this.a.sort?.()",
            "new Array(10)",
            "a`x`",
            "function(a = b()) { return a }",
            "function(emit) { emit(1) }",
            "function(Math) { Math.max(1) }",
            "this.Math.max(1)",
            "var Math = globalThis['ev' + 'al']; Math.max('1')",
            "Math.max = globalThis['ev' + 'al']",
            "Math.max += 1",
            "Math.max >>= 1",
            "Math.max ++",
            "[Math.max] = [1]",
            "emit.call(1)",
            "emit(1)(2)",
            "x => y => x",
            "(x => x)(1)",
            "({ valueOf() { return 1 } }) + 1",
            "({ get a() { return 1 } }).a",
            "function(){ return +({length:9e15,valueOf:[].fill}) }",
            "+{ 'valueOf': [].fill }",
            "{ length: 9e15, valueOf: [].fill } + 1",
            "function() { return 1 } + { valueOf: [].fill }",
            "x => ({ n: x })",
            "emit(1, { n: 1 })",
            "var { a } = this",
            "Math.__defineGetter__('x', [].fill)",
            "2n ** 99999999n",
            "[...this.a, ...this.a]",
            "/(a+)+$/.test(this.s)",
            "this.a\\u002esort()",
            "this.a ? 'x",
            long.as_str(),
        ] {
            assert!(!is_brief(code), "{code}");
        }
    }
}
