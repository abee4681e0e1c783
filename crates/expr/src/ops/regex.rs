//! `$regexFind`, `$regexFindAll`, `$regexMatch`, over PCRE2.

use sheaf_bson::{Bump, DocWriter, Value, document_in};
use sheaf_errors::{Error, Result, bail};
use sheaf_regex::{Captures, Flags, Invalid, Regex};

use super::string::next_char;
use super::{build_array, grown};
use crate::context::ParseCx;
use crate::expr::{Call, Cx, Expr};
use crate::operator::{Named, Operator, State, custom};
use crate::parse::parse_named;

static FIELDS: Named = Named {
    fields: &[("input", 31022), ("regex", 31023), ("options", 0)],
    not_object: 51103,
    unknown: 31024,
};

pub(crate) static OPERATORS: &[Operator] = &[
    custom("$regexFind", parse, regex_find).serialized(serialize),
    custom("$regexFindAll", parse, regex_find_all).serialized(serialize),
    custom("$regexMatch", parse, regex_match).serialized(serialize),
];

/// The longest pattern that MongoDB compiles.
const PATTERN_MAX: usize = 16_384;

/// A compiled regular expression.
#[derive(Debug)]
pub(crate) struct Pattern(Regex);

impl Pattern {
    /// Compiles a pattern with option letters; `name` is the operator's, for errors.
    pub(crate) fn compile(name: &str, pattern: &str, options: &str) -> Result<Pattern> {
        if pattern.contains('\0') {
            bail!(51109, "{name}: regular expression cannot contain an embedded null byte");
        }
        if options.contains('\0') {
            bail!(51110, "{name}: regular expression options cannot contain an embedded null byte");
        }
        let mut flags = Flags::default();
        for option in options.chars() {
            match option {
                'i' => flags.caseless = true,
                'm' => flags.multi_line = true,
                's' => flags.dot_all = true,
                'x' => flags.extended = true,
                'u' => {}
                other => bail!(51108, "{name} invalid flag in regex options: {other}"),
            }
        }
        if pattern.len() > PATTERN_MAX {
            bail!(
                51111,
                "Invalid Regex in {name}: pattern string is longer than the limit set by the application"
            );
        }
        let invalid = |what: &Invalid| Error::location(51111, format!("Invalid Regex in {name}: {what}"));
        Regex::new(pattern, flags).map(Pattern).map_err(|error| error.into_error(invalid))
    }

    /// The first match at or after `from`, as a byte range.
    pub(crate) fn find_at(&self, text: &str, from: usize) -> Result<Option<(usize, usize)>> {
        self.0.find_at(text, from)
    }
}

fn parse(op: &'static Operator, argument: Value<'_>, cx: &mut ParseCx) -> Result<Expr> {
    let args = parse_named(op.name, &FIELDS, argument, cx)?;
    let known = |at: usize| if args[at].is_absent() { Some(Value::Missing) } else { args[at].constant() };
    let state = match (known(1), known(2)) {
        (Some(regex), Some(options)) => match compile(op.name, regex, options) {
            Ok(pattern) => State::Regex(pattern),
            Err(error) => {
                cx.fold_failed(error);
                State::None
            }
        },
        _ => State::None,
    };
    Ok(Expr::call(op, args, state, cx))
}

/// Compiles what the arguments `regex` and `options` say; `None` for a null pattern.
fn compile(name: &str, regex: Value<'_>, options: Value<'_>) -> Result<Option<Pattern>> {
    if !(matches!(regex, Value::String(_) | Value::Regex(_)) || regex.is_nullish()) {
        bail!(51105, "{name} needs 'regex' to be of type string or regex");
    }
    let given = match options {
        Value::String(options) => Some(options),
        value if value.is_nullish() => None,
        _ => bail!(51106, "{name} needs 'options' to be of type string"),
    };
    let options = given.unwrap_or("");
    match regex {
        Value::String(pattern) => Pattern::compile(name, pattern, options).map(Some),
        Value::Regex(regex) => {
            // Flags of the literal that nobody knows count for nothing.
            let flags: String = regex.options.chars().filter(|flag| "imsx".contains(*flag)).collect();
            if !flags.is_empty() && given.is_some() {
                bail!(51107, "{name} found regex option(s) specified in both 'regex' and 'option' fields");
            }
            Pattern::compile(name, regex.pattern, given.unwrap_or(&flags)).map(Some)
        }
        _ if options.contains('\0') => {
            bail!(51110, "{name}: regular expression options cannot contain an embedded null byte")
        }
        _ => Ok(None),
    }
}

/// Runs `search` on the input and the pattern; `None` if one of them is null.
fn with_pattern<'a, T>(
    call: &'a Call,
    cx: Cx<'a, '_>,
    search: impl FnOnce(&'a str, &Pattern) -> Result<T>,
) -> Result<Option<T>> {
    let input = call.arg(0, cx)?;
    // What is wrong with the pattern is found before what is wrong with the input.
    let compiled;
    let pattern = match &call.state {
        State::Regex(pattern) => pattern,
        _ => {
            compiled = compile(call.op.name, call.arg(1, cx)?, call.arg(2, cx)?)?;
            &compiled
        }
    };
    let text = match input {
        Value::String(text) => Some(text),
        value if value.is_nullish() => None,
        _ => bail!(51104, "{} needs 'input' to be of type string", call.op.name),
    };
    match (text, pattern) {
        (Some(text), Some(pattern)) => search(text, pattern).map(Some),
        _ => Ok(None),
    }
}

fn regex_match<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let found = with_pattern(call, cx, |text, pattern| Ok(pattern.find_at(text, 0)?.is_some()))?;
    Ok(Value::Bool(found.unwrap_or(false)))
}

fn regex_find<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let found = with_pattern(call, cx, |text, pattern| {
        let Some(at) = pattern.0.captures_at(text, 0)? else { return Ok(Value::Null) };
        Ok(Value::Document(document_in(cx.env.arena(), |out| describe(out, text, &at, &mut (0, 0)))))
    })?;
    Ok(found.unwrap_or(Value::Null))
}

fn regex_find_all<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let found = with_pattern(call, cx, |text, pattern| {
        let (mut from, mut counted) = (0, (0, 0));
        build_array(cx, |out| {
            while let Some(at) = pattern.0.captures_at(text, from)? {
                describe(&mut out.document(), text, &at, &mut counted);
                grown(cx, out.size())?;
                let (start, end) = at.get(0).unwrap_or((from, from));
                from = if end > start { end } else { next_char(text, end) };
                // The end of the text is looked at only if that is all there is.
                if from >= text.len() {
                    break;
                }
            }
            Ok(())
        })
    })?;
    Ok(found.unwrap_or(Value::Array(sheaf_bson::RawDoc::EMPTY)))
}

/// Writes `match`, `idx` (in code points) and `captures`. `counted` is a place in bytes and code points from
/// which to go on counting.
fn describe<S: sheaf_bson::Sink>(
    out: &mut DocWriter<'_, S>,
    text: &str,
    at: &Captures,
    counted: &mut (usize, usize),
) {
    let (start, end) = at.get(0).unwrap_or((0, 0));
    counted.1 += text[counted.0..start].chars().count();
    counted.0 = start;
    out.append("match", &text[start..end]).append("idx", counted.1 as i32);
    let mut captures = out.array("captures");
    for group in 1..at.len() {
        match at.get(group) {
            Some((start, end)) => captures.push(&text[start..end]),
            None => captures.push(Value::Null),
        };
    }
}

fn serialize<'a>(call: &'a Call, arena: &'a Bump) -> Value<'a> {
    Value::Document(document_in(arena, |out| {
        for ((name, _), arg) in FIELDS.fields.iter().zip(&call.args) {
            if !arg.is_absent() {
                out.append(name, arg.serialize(arena));
            }
        }
    }))
}
