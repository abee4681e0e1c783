//! Regular expressions in filters.

use std::fmt;

use sheaf_bson::{Value, compare};
use sheaf_errors::{Error, Result, bail};
use sheaf_regex::{Flags, Invalid};

use crate::ticks::tick_for;

/// A compiled regular expression with its source.
#[derive(Clone)]
pub struct Regex {
    pattern: Box<str>,
    options: Box<str>,
    program: Program,
}

/// How to run it: most patterns in practice are literals, for which no engine is needed.
#[derive(Clone)]
enum Program {
    Contains(Box<str>),
    StartsWith(Box<str>),
    Pcre(sheaf_regex::Regex),
}

/// Longest pattern, in bytes.
const PATTERN_MAX: usize = 16_384;

impl Regex {
    /// Compiles a pattern with MongoDB's options: i, m, s, x and u (which changes nothing: patterns are
    /// always UTF-8).
    pub fn new(pattern: &str, options: &str) -> Result<Self> {
        Self::named(pattern, options, "")
    }

    /// Like [`Regex::new`]; errors begin with `operator`.
    pub fn named(pattern: &str, options: &str, operator: &str) -> Result<Self> {
        let mut flags = Flags::default();
        for flag in options.chars() {
            match flag {
                'i' => flags.caseless = true,
                'm' => flags.multi_line = true,
                's' => flags.dot_all = true,
                'x' => flags.extended = true,
                'u' => {}
                other => bail!(51108, "{operator} invalid flag in regex options: {other}"),
            }
        }
        if pattern.len() > PATTERN_MAX {
            let space = if operator.is_empty() { "" } else { " " };
            bail!(
                51091,
                "{operator}{space}Regular expression is invalid: pattern string is longer than the limit set by the application"
            );
        }
        let program = match literal(pattern, options) {
            Some(program) => program,
            None => {
                let compiled = sheaf_regex::Regex::new(pattern, flags);
                Program::Pcre(compiled.map_err(|error| error.into_error(|what| invalid(operator, what)))?)
            }
        };
        Ok(Regex { pattern: pattern.into(), options: options.into(), program })
    }

    /// The pattern.
    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    /// The option letters as they came.
    pub fn options(&self) -> &str {
        &self.options
    }

    /// Whether the pattern is found in a text.
    ///
    /// Errors: 51156 where that takes too many steps or too much memory to find out; what the meter says.
    pub fn is_match(&self, text: &str) -> Result<bool> {
        match &self.program {
            Program::Contains(literal) => {
                tick_for(text.len())?;
                Ok(text.contains(&**literal))
            }
            Program::StartsWith(literal) => Ok(text.starts_with(&**literal)),
            Program::Pcre(regex) => regex.is_match(text),
        }
    }

    /// Whether a value matches: a string or symbol in which the pattern is found, or the same regular
    /// expression.
    ///
    /// Errors: those of [`Regex::is_match`].
    pub fn matches_value(&self, value: Value<'_>) -> Result<bool> {
        match value {
            Value::String(text) | Value::Symbol(text) => self.is_match(text),
            Value::Regex(_) => Ok(compare(value, self.as_value()).is_eq()),
            _ => Ok(false),
        }
    }

    /// The regular expression as a BSON value.
    pub fn as_value(&self) -> Value<'_> {
        Value::Regex(sheaf_bson::Regex { pattern: &self.pattern, options: &self.options })
    }

    /// The text with which every match starts, if the pattern says so (`^abc`), and whether having that
    /// prefix is all that the pattern asks for. For index bounds.
    pub fn prefix(&self) -> Option<(String, bool)> {
        let (multi_line, extended) = (self.options.contains('m'), self.options.contains('x'));
        let anchored = match (self.pattern.strip_prefix('^'), self.pattern.strip_prefix("\\A")) {
            (Some(rest), _) if !multi_line => rest,
            (_, Some(rest)) => rest,
            _ => return None,
        };
        if self.options.contains('i') || extended || anchored.contains('|') {
            return None;
        }
        let (text, whole) = leading_literal(anchored);
        (!text.is_empty()).then_some((text, whole))
    }
}

/// The literal with which a pattern starts, and whether that is the whole pattern.
fn leading_literal(pattern: &str) -> (String, bool) {
    let mut text = String::new();
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '*' | '?' | '{' => {
                // The character before may occur zero times.
                text.pop();
                return (text, false);
            }
            '.' if chars.peek() == Some(&'*') => {
                chars.next();
                // `^abc.*` asks for no more than `^abc`, as nothing has to follow.
                return (text, chars.peek().is_none());
            }
            '+' | '.' | '(' | ')' | '[' | ']' | '}' | '^' | '$' | '|' => return (text, false),
            '\\' => match chars.next() {
                Some('Q') => return quoted(text, chars.collect()),
                Some(escaped) if !escaped.is_alphanumeric() => text.push(escaped),
                _ => return (text, false),
            },
            other => text.push(other),
        }
    }
    (text, true)
}

/// `\Q...\E`: everything between is literal.
fn quoted(mut text: String, rest: String) -> (String, bool) {
    match rest.split_once("\\E") {
        Some((inside, after)) => {
            text.push_str(inside);
            (text, after.is_empty())
        }
        None => (text + &rest, true),
    }
}

/// Patterns without any special character run without an engine.
fn literal(pattern: &str, options: &str) -> Option<Program> {
    if options.contains(['i', 'x', 'm']) {
        return None;
    }
    let (text, starts) = match pattern.strip_prefix('^') {
        Some(text) => (text, true),
        None => (pattern, false),
    };
    let plain = |c: char| {
        !matches!(c, '\\' | '^' | '$' | '.' | '|' | '?' | '*' | '+' | '(' | ')' | '[' | ']' | '{' | '}')
    };
    text.chars().all(plain).then(|| match starts {
        true => Program::StartsWith(text.into()),
        false => Program::Contains(text.into()),
    })
}

fn invalid(operator: &str, error: &Invalid) -> Error {
    let space = if operator.is_empty() { "" } else { " " };
    Error::location(51091, format!("{operator}{space}Regular expression is invalid: {}", error.reason()))
}

impl fmt::Debug for Regex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}/{}", self.pattern, self.options)
    }
}
