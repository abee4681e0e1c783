//! `$cond`, `$ifNull`, `$switch`.

use sheaf_bson::{Bump, Value, array_in, document_in};
use sheaf_errors::{Error, Result, bail};

use crate::context::ParseCx;
use crate::expr::{Call, Cx, Expr};
use crate::operator::{Arity, Operator, State, custom};
use crate::parse::parse_arguments;

pub(crate) static OPERATORS: &[Operator] = &[
    custom("$cond", parse_cond, cond),
    custom("$ifNull", parse_if_null, if_null),
    custom("$switch", parse_switch, switch).serialized(serialize_switch),
];

fn parse_cond(op: &'static Operator, argument: Value<'_>, cx: &mut ParseCx) -> Result<Expr> {
    let args = match argument {
        Value::Document(doc) => {
            let mut parts = [None, None, None];
            for element in doc.iter() {
                let at = match element.key() {
                    "if" => 0,
                    "then" => 1,
                    "else" => 2,
                    other => bail!(17083, "Unrecognized parameter to $cond: {other}"),
                };
                parts[at] = Some(Expr::parse(element.value(), cx)?);
            }
            match parts {
                [None, _, _] => bail!(17080, "Missing 'if' parameter to $cond"),
                [_, None, _] => bail!(17081, "Missing 'then' parameter to $cond"),
                [_, _, None] => bail!(17082, "Missing 'else' parameter to $cond"),
                [Some(condition), Some(then), Some(other)] => vec![condition, then, other],
            }
        }
        other => parse_arguments(op.name, Arity::Exactly(3), other, cx)?,
    };
    // A known condition leaves only its branch.
    match args[0].constant().map(|value| value.truthy()) {
        Some(chosen) => Ok(args.into_iter().nth(if chosen { 1 } else { 2 }).unwrap_or(Expr::null())),
        None => Ok(Expr::call(op, args, State::None, cx)),
    }
}

fn cond<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let chosen = if call.arg(0, cx)?.truthy() { 1 } else { 2 };
    call.arg(chosen, cx)
}

fn parse_if_null(op: &'static Operator, argument: Value<'_>, cx: &mut ParseCx) -> Result<Expr> {
    let args = parse_arguments(op.name, Arity::Any, argument, cx)?;
    if args.len() < 2 {
        bail!(1257300, "$ifNull needs at least two arguments, had: {}", args.len());
    }
    Ok(Expr::call(op, args, State::None, cx))
}

fn if_null<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let (last, first) = call.args.split_last().unwrap_or((&call.args[0], &[]));
    for arg in first {
        let value = arg.value(cx)?;
        if !value.is_nullish() {
            return Ok(value);
        }
    }
    last.value(cx)
}

/// Arguments: case, then, case, then, ...; and the default last, if there is one.
fn parse_switch(op: &'static Operator, argument: Value<'_>, cx: &mut ParseCx) -> Result<Expr> {
    let Value::Document(doc) = argument else {
        bail!(40060, "$switch requires an object as an argument, found: {}", argument.type_name());
    };
    let mut args = Vec::new();
    let mut default = None;
    for element in doc.iter() {
        match (element.key(), element.value()) {
            ("branches", Value::Array(branches)) => {
                let mut decided = false;
                for branch in branches.values() {
                    let ((case, failed_case), (then, failed_then)) = parse_branch(branch, cx)?;
                    let known = case.constant().map(|value| value.truthy());
                    // Behind a case that is known to be true nothing is optimised, and what a case that is known to be
                    // false leads to is not either, so nothing can fail there.
                    if !decided {
                        let then = failed_then.filter(|_| known != Some(false));
                        failed_case.into_iter().chain(then).for_each(|error| cx.fold_failed(error));
                    }
                    decided |= known == Some(true);
                    args.push(case);
                    args.push(then);
                }
            }
            ("branches", other) => {
                bail!(40061, "$switch expected an array for 'branches', found: {}", other.type_name())
            }
            ("default", value) => default = Some(Expr::parse(value, cx)?),
            (other, _) => bail!(40067, "$switch found an unknown argument: {other}"),
        }
    }
    if args.is_empty() {
        bail!(40068, "$switch requires at least one branch.");
    }
    prune_switch(op, args, default, cx)
}

/// Leaves out the branches whose cases are known to be false, and everything behind one known to be true.
fn prune_switch(
    op: &'static Operator,
    args: Vec<Expr>,
    mut default: Option<Expr>,
    cx: &mut ParseCx,
) -> Result<Expr> {
    let mut kept = Vec::with_capacity(args.len() + 1);
    let mut args = args.into_iter();
    while let (Some(case), Some(then)) = (args.next(), args.next()) {
        match case.constant().map(|value| value.truthy()) {
            Some(false) => {}
            Some(true) => {
                default = Some(then);
                break;
            }
            None => kept.extend([case, then]),
        }
    }
    match default {
        Some(default) if kept.is_empty() => return Ok(default),
        Some(default) => kept.push(default),
        None if kept.is_empty() => {
            cx.fold_failed(Error::location(
                40069,
                "Cannot execute a switch statement where all the cases evaluate to false without a default.",
            ));
            kept = vec![Expr::literal(Value::Bool(false)), Expr::null()];
        }
        None => {}
    }
    Ok(Expr::unfolded(op, kept, State::None))
}

/// An expression, and how folding its constants failed.
type Folded = (Expr, Option<Error>);

/// Parses an expression whose failure to fold may not count.
fn parse_apart(value: Value<'_>, cx: &mut ParseCx) -> Result<Folded> {
    let before = cx.swap_fold_error(None);
    let expr = Expr::parse(value, cx)?;
    let failed = cx.swap_fold_error(before);
    Ok((expr, failed))
}

fn parse_branch(branch: Value<'_>, cx: &mut ParseCx) -> Result<(Folded, Folded)> {
    let Value::Document(doc) = branch else {
        bail!(40062, "$switch expected each branch to be an object, found: {}", branch.type_name());
    };
    let (mut case, mut then) = (None, None);
    for element in doc.iter() {
        match element.key() {
            "case" => case = Some(parse_apart(element.value(), cx)?),
            "then" => then = Some(parse_apart(element.value(), cx)?),
            other => bail!(40063, "$switch found an unknown argument to a branch: {other}"),
        }
    }
    match (case, then) {
        (None, _) => bail!(40064, "$switch requires each branch have a 'case' expression"),
        (_, None) => bail!(40065, "$switch requires each branch have a 'then' expression."),
        (Some(case), Some(then)) => Ok((case, then)),
    }
}

fn switch<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let mut branches = call.args.chunks_exact(2);
    for branch in &mut branches {
        if branch[0].value(cx)?.truthy() {
            return branch[1].value(cx);
        }
    }
    match branches.remainder().first() {
        Some(default) => default.value(cx),
        None => {
            bail!(
                40066,
                "$switch could not find a matching branch for an input, and no default was specified."
            )
        }
    }
}

fn serialize_switch<'a>(call: &'a Call, arena: &'a Bump) -> Value<'a> {
    let branches = call.args.chunks_exact(2);
    let default = branches.remainder().first();
    Value::Document(document_in(arena, |out| {
        let list = array_in(arena, |list| {
            for branch in branches {
                list.document()
                    .append("case", branch[0].serialize(arena))
                    .append("then", branch[1].serialize(arena));
            }
        });
        out.append("branches", Value::Array(list));
        if let Some(default) = default {
            out.append("default", default.serialize(arena));
        }
    }))
}
